//! Reads traces of nodes and tasks, and turns them into clusters and shapes.

use berth_core::cluster::{Cluster, GpuFacts, Models, NodeFacts, WHOLE_MILLI};
use berth_core::shape::{Device, Shape};
use berth_types::ids::NodeId;
use uuid::Uuid;

pub struct Task {
    pub shape: Shape,
    /// Thousandths of a GPU in all.
    pub milli: u64,
}

pub struct Trace {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    /// Thousandths of a GPU in all.
    pub capacity: u64,
}

/// A small generator of well-spread numbers (SplitMix64), so that a seed means the same everywhere.
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

    /// One of some; the default of none.
    pub fn pick<T: Copy + Default>(&mut self, of: &[T]) -> T {
        of.get(self.below(of.len())).copied().unwrap_or_default()
    }

    /// In (0, 1].
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

fn rows(path: &str) -> Result<Vec<Vec<String>>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    Ok(text.lines().skip(1).map(|l| l.split(',').map(str::to_owned).collect()).collect())
}

fn number<T: std::str::FromStr>(row: &[String], column: usize) -> Result<T, String> {
    let text = row.get(column).ok_or_else(|| format!("a row has no column {column}"))?;
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

pub fn node_id(n: u128) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(n))
}

/// A node with boards of one model.
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
        images: false,
        cpu_milli: 1_000_000,
        memory_mib: 1_000_000,
        switch: Some(format!("leaf-{}", n / 32).into()),
        rack: Some(format!("rack-{}", n / 128).into()),
        gpus: (0..gpus).map(gpu).collect(),
    }
}

/// Nodes: `name, cpu_milli, memory_mib, gpus, model`. Tasks: `name, cpu_milli, memory_mib, num_gpu,
/// gpu_milli, gpu_spec (models joined by |)`.
pub fn read(nodes: &str, tasks: &str) -> Result<Trace, String> {
    let mut cluster = Cluster::default();
    let mut capacity = 0;
    for (index, row) in rows(nodes)?.iter().enumerate() {
        let gpus: u64 = number(row, 3)?;
        let model: String = number(row, 4)?;
        capacity += gpus * u64::from(WHOLE_MILLI);
        cluster.put_node(NodeFacts {
            id: node_id(index as u128),
            open: true,
            away: false,
            images: false,
            cpu_milli: number(row, 1)?,
            memory_mib: number(row, 2)?,
            switch: None,
            rack: None,
            gpus: (0..gpus)
                .map(|gpu| GpuFacts {
                    uuid: format!("GPU-{index}-{gpu}").into(),
                    model: model.as_str().into(),
                    mig_enabled: false,
                    healthy: true,
                    island: 0,
                    limit_watts: None,
                    foreign: Vec::new(),
                })
                .collect(),
        });
    }
    let known = cluster.models().len();
    let any = Models((1 << known) - 1);
    let mut out = Vec::new();
    for row in rows(tasks)? {
        let count: u32 = number(&row, 3)?;
        let milli: u16 = number(&row, 4).unwrap_or(0);
        // Some traces end with the share: any model will do.
        let spec = row.get(5).map_or("", String::as_str);
        let named = spec.split('|').filter(|s| !s.is_empty()).filter_map(|s| cluster.find_model(s));
        let set = named.fold(0, |set, m| set | Models::only(m).0);
        let device = if count == 1 && milli < WHOLE_MILLI {
            Device::Share { milli, sharer: 1 }
        } else {
            Device::Board
        };
        out.push(Task {
            shape: Shape {
                device,
                count,
                models: if set == 0 { any } else { Models(set) },
                cpu_milli: number(&row, 1)?,
                memory_mib: number(&row, 2)?,
                nvlink: false,
                images: false,
            },
            milli: u64::from(count) * u64::from(milli),
        });
    }
    Ok(Trace { cluster, tasks: out, capacity })
}
