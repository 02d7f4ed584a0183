//! Traces of nodes and tasks: reads them as a cluster and as shapes.

use berth_placement::cluster::{Cluster, GpuFacts, Models, NodeFacts, WHOLE_MILLI};
use berth_placement::networks::{NetworkNeed, NodeNetworks};
use berth_placement::shape::{Device, Shape};
use berth_placement::tenancy::Tenancy;
use berth_types::ids::NodeId;
use uuid::Uuid;

pub struct Task {
    pub shape: Shape,
    /// Thousandths of a GPU of all devices of the task.
    pub milli: u64,
}

pub struct Trace {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    /// Thousandths of a GPU of the whole cluster.
    pub capacity: u64,
}

/// A generator of pseudo-random numbers (SplitMix64), equal on all machines.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from((u128::from(self.next()) * n as u128) >> 64).unwrap_or(0)
    }

    /// A random item; the default value for an empty list.
    pub fn pick<T: Copy + Default>(&mut self, items: &[T]) -> T {
        items.get(self.below(items.len())).copied().unwrap_or_default()
    }

    /// A number in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// A published CSV table with a header.
struct Table<'a> {
    columns: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    fn parse(text: &'a str) -> Self {
        let mut lines = text.lines().map(|l| l.split(',').map(str::trim).collect::<Vec<_>>());
        let columns = lines.next().unwrap_or_default();
        // Empty lines are not rows.
        Self { columns, rows: lines.filter(|row| row.iter().any(|field| !field.is_empty())).collect() }
    }

    fn find(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| *c == column)
    }

    fn get(&self, column: &str) -> Result<usize, String> {
        self.find(column).ok_or_else(|| format!("there is no column {column}"))
    }
}

fn field<'a>(row: &[&'a str], column: usize) -> Result<&'a str, String> {
    row.get(column).copied().ok_or_else(|| format!("a row ends before column {}: {row:?}", column + 1))
}

fn number<T: std::str::FromStr>(row: &[&str], column: usize) -> Result<T, String> {
    let text = field(row, column)?;
    text.parse().map_err(|_| format!("{text:?} is not a number: {row:?}"))
}

pub fn node_id(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

/// The facts of a node with boards of one model.
pub fn node(n: u32, model: &str, gpus: u32, mig_enabled: bool) -> NodeFacts {
    let gpu = |i: u32| GpuFacts {
        uuid: format!("GPU-{n}-{i}").into(),
        model: model.into(),
        mig_enabled,
        healthy: true,
        island: 0,
        limit_watts: None,
        foreign: Vec::new(),
    };
    NodeFacts {
        id: node_id(u128::from(n)),
        open: true,
        away: false,
        awaited: false,
        lost: false,
        drains_by: None,
        images: false,
        rdma_boards: 0,
        networks: NodeNetworks::ALL,
        storage: Vec::new(),
        cpu_milli: 1_000_000,
        memory_mib: 1_000_000,
        switch: Some(format!("leaf-{}", n / 32).into()),
        rack: Some(format!("rack-{}", n / 128).into()),
        dedicated_to: None,
        pool: berth_types::node_pools::NodePool::Both,
        gpus: (0..gpus).map(gpu).collect(),
    }
}

/// Reads a trace. Nodes have the columns `cpu_milli`, `memory_mib`, `gpu` (the number of GPUs) and `model`.
/// Tasks have `cpu_milli`, `memory_mib`, `num_gpu` and `gpu_milli`, and optionally `gpu_spec` (accepted
/// models, joined by `|`).
///
/// # Errors
/// A text that names the file and the fault.
pub fn read(nodes: &str, tasks: &str) -> Result<Trace, String> {
    let open = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let mut trace = Trace { cluster: Cluster::default(), tasks: Vec::new(), capacity: 0 };
    read_nodes(&open(nodes)?, &mut trace).map_err(|e| format!("{nodes}: {e}"))?;
    read_tasks(&open(tasks)?, &mut trace).map_err(|e| format!("{tasks}: {e}"))?;
    Ok(trace)
}

fn read_nodes(text: &str, trace: &mut Trace) -> Result<(), String> {
    let table = Table::parse(text);
    let (cpu, memory) = (table.get("cpu_milli")?, table.get("memory_mib")?);
    let (gpu, model) = (table.get("gpu")?, table.get("model")?);
    for (index, row) in table.rows.iter().enumerate() {
        let gpus: u64 = number(row, gpu)?;
        let model = field(row, model)?;
        trace.capacity += gpus * u64::from(WHOLE_MILLI);
        trace.cluster.put_node(NodeFacts {
            id: node_id(index as u128),
            open: true,
            away: false,
            awaited: false,
            lost: false,
            drains_by: None,
            images: false,
            rdma_boards: 0,
            networks: NodeNetworks::ALL,
            storage: Vec::new(),
            cpu_milli: number(row, cpu)?,
            memory_mib: number(row, memory)?,
            switch: None,
            rack: None,
            dedicated_to: None,
            pool: berth_types::node_pools::NodePool::Both,
            gpus: (0..gpus)
                .map(|gpu| GpuFacts {
                    uuid: format!("GPU-{index}-{gpu}").into(),
                    model: model.into(),
                    mig_enabled: false,
                    healthy: true,
                    island: 0,
                    limit_watts: None,
                    foreign: Vec::new(),
                })
                .collect(),
        });
    }
    Ok(())
}

fn read_tasks(text: &str, trace: &mut Trace) -> Result<(), String> {
    let table = Table::parse(text);
    let (cpu, memory) = (table.get("cpu_milli")?, table.get("memory_mib")?);
    let (num_gpu, gpu_milli) = (table.get("num_gpu")?, table.get("gpu_milli")?);
    // Traces without `gpu_spec` accept any model.
    let gpu_spec = table.find("gpu_spec");
    let known = trace.cluster.models().len();
    let any = Models((1 << known) - 1);
    for row in &table.rows {
        let count: u32 = number(row, num_gpu)?;
        // `gpu_milli` may be empty for a task without a GPU.
        let milli: u16 = if field(row, gpu_milli)?.is_empty() { 0 } else { number(row, gpu_milli)? };
        let spec = gpu_spec.and_then(|column| row.get(column)).copied().unwrap_or_default();
        let named = spec.split('|').filter(|s| !s.is_empty()).filter_map(|s| trace.cluster.find_model(s));
        let set = named.fold(0, |set, m| set | Models::only(m).0);
        let device = if count == 1 && milli < WHOLE_MILLI {
            Device::Share { milli, sharer: 1 }
        } else {
            Device::Board
        };
        trace.tasks.push(Task {
            shape: Shape {
                device,
                count,
                models: if set == 0 { any } else { Models(set) },
                cpu_milli: number(row, cpu)?,
                memory_mib: number(row, memory)?,
                nvlink: false,
                images: false,
                rdma: false,
                network: NetworkNeed::Any,
                gang: false,
                storage: 0,
                tenancy: Tenancy::COMMON,
                work: berth_placement::pools::Work::Training,
            },
            milli: u64::from(count) * u64::from(milli),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "sn,cpu_milli,memory_mib,gpu,model\n\
                         a,64000,262144,2,P100\n\
                         b,96000,393216,8,T4\n";

    fn empty() -> Trace {
        Trace { cluster: Cluster::default(), tasks: Vec::new(), capacity: 0 }
    }

    fn read_text(nodes: &str, tasks: &str) -> Result<Trace, String> {
        let mut trace = empty();
        read_nodes(nodes, &mut trace)?;
        read_tasks(tasks, &mut trace)?;
        Ok(trace)
    }

    fn error(read: Result<Trace, String>) -> String {
        read.err().expect("it is refused")
    }

    #[test]
    fn the_published_columns_are_read() {
        let tasks = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
                     deletion_time,scheduled_time\n\
                     one,12000,16384,1,460,,LS,Running,0,12537496,0\n\
                     two,8000,30517,2,1000,T4|unheard-of,BE,Running,9992086,10013821,9992086\n";
        let trace = read_text(NODES, tasks).expect("a trace");
        assert_eq!((trace.capacity, trace.cluster.models().len()), (10_000, 2));
        let facts =
            trace.cluster.nodes().iter().map(|n| (n.facts.cpu_milli, n.facts.memory_mib, n.facts.gpus.len()));
        assert_eq!(facts.collect::<Vec<_>>(), [(64_000, 262_144, 2), (96_000, 393_216, 8)]);
        let [one, two] = trace.tasks.as_slice() else { panic!("two tasks") };
        assert_eq!((one.shape.device, one.shape.count), (Device::Share { milli: 460, sharer: 1 }, 1));
        assert_eq!((one.shape.cpu_milli, one.shape.memory_mib, one.milli), (12_000, 16_384, 460));
        assert_eq!(one.shape.models.0, 0b11, "any model");
        assert_eq!((two.shape.device, two.shape.count, two.milli), (Device::Board, 2, 2_000));
        let t4 = trace.cluster.find_model("T4").expect("a model");
        assert_eq!(two.shape.models.0, Models::only(t4).0, "a model that no node has is no choice");
    }

    #[test]
    fn columns_after_the_share_are_not_needed() {
        let tasks = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n\
                     one,4000,8192,1,1000\n\
                     two,4000,8192,0,\n\
                     \n";
        let trace = read_text(NODES, tasks).expect("a trace");
        let [one, two] = trace.tasks.as_slice() else { panic!("two tasks") };
        assert_eq!((one.shape.device, one.milli, one.shape.models.0), (Device::Board, 1_000, 0b11));
        assert_eq!((two.shape.count, two.milli, two.shape.models.0), (0, 0, 0b11));
    }

    #[test]
    fn a_column_that_is_missing_is_named() {
        for column in ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli"] {
            let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec".replace(column, "other");
            let tasks = format!("{header}\none,4000,8192,1,1000,\n");
            assert_eq!(error(read_text(NODES, &tasks)), format!("there is no column {column}"));
        }
        for column in ["cpu_milli", "memory_mib", "gpu", "model"] {
            let nodes = NODES.replace(&format!(",{column}"), ",other");
            let tasks = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n";
            assert_eq!(error(read_text(&nodes, tasks)), format!("there is no column {column}"));
        }
    }

    #[test]
    fn a_row_that_is_no_task_is_shown() {
        let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n";
        let short = error(read_text(NODES, &format!("{header}one,4000,8192,1\n")));
        assert_eq!(short, "a row ends before column 5: [\"one\", \"4000\", \"8192\", \"1\"]");
        let odd = error(read_text(NODES, &format!("{header}one,4000,8192,1,half\n")));
        assert!(odd.starts_with("\"half\" is not a number"), "{odd}");
    }
}
