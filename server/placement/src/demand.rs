//! The demand model: the probability of each class of requests, learned from past requests.
//!
//! Old requests weigh less, so the model follows a change of use. The scorers read the model as tables: the
//! probability that a next request can use the free part of a board. The model knows past requests only.

use std::collections::HashMap;
use std::sync::Arc;

use berth_mig::{boards, cover, masks};

use crate::cluster::{Cluster, MAX_GPUS, ModelIx, Models, WHOLE_MILLI};
use crate::networks::NetworkNeed;
use crate::shape::{Device, Shape};
use crate::tenancy::Tenancy;

/// Number of further requests after which a request has half its weight.
const HALF_LIFE: f64 = 20_000.0;
/// The tables leave out the rarest classes, up to this sum of probabilities.
const TAIL: f64 = 0.05;
/// The tables are built again only after a change of probabilities by this sum.
const LEAST_CHANGE: f64 = 0.05;
/// Greatest number of classes in the tables.
const MAX_CLASSES: usize = 64;

/// The number of coming requests that may use a free part before it counts as lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Horizon {
    /// For an empty board: requests of any kind.
    pub boards: f64,
    /// For the rest of a shared board: requests for shares.
    pub shares: f64,
    /// For the rest of a sliced board: requests for slices.
    pub slices: f64,
}

/// A class of requests: those with the same values for the demand model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestClass {
    pub device: Device,
    pub count: u32,
    pub cpu_milli: i64,
    pub models: Models,
}

impl RequestClass {
    fn from_shape(shape: &Shape) -> Self {
        let device = match shape.device {
            Device::Share { milli, .. } => Device::Share { milli, sharer: 0 },
            other => other,
        };
        Self { device, count: shape.count, cpu_milli: shape.cpu_milli, models: shape.models }
    }

    /// Thousandths of a board for one device; 0 for a slice.
    pub fn each_milli(&self) -> u16 {
        match self.device {
            Device::Board => WHOLE_MILLI,
            Device::Share { milli, .. } => milli,
            Device::Slice { .. } => 0,
        }
    }
}

/// The tables of one model: the probability that no coming request uses a free part, from 0 to 1.
#[derive(Debug, Clone, Default)]
struct Table {
    /// Distinct processor needs, ascending.
    cpus: Vec<i64>,
    /// For each number of thousandths, the number of distinct device needs up to it.
    column: Vec<u8>,
    columns: usize,
    /// `part[row * columns + column]`.
    part: Vec<f32>,
    /// `full[row * (MAX_GPUS + 1) + free whole boards]`.
    full: Vec<f32>,
    /// Unusable thousandths of a sliced board by its occupied slices.
    sliced: Vec<f32>,
}

/// The tables of all models in one version. Costs by different versions cannot be compared: a change of the
/// mix changes the costs of all nodes.
#[derive(Debug, Clone, Default)]
pub struct DemandTables {
    version: u32,
    /// The most frequent classes with their probabilities.
    classes: Vec<(RequestClass, f64)>,
    tables: Vec<Table>,
    pressure: Vec<f64>,
}

#[derive(Debug, Clone, Default)]
pub struct DemandModel {
    counts: HashMap<RequestClass, f64>,
    weight: f64,
    observed: u64,
    built_at: u64,
    newest: Arc<DemandTables>,
}

impl DemandModel {
    /// The newest tables.
    pub fn tables(&self) -> &Arc<DemandTables> {
        &self.newest
    }

    /// Counts a request.
    pub fn observe(&mut self, shape: &Shape) {
        if self.weight == 0.0 {
            self.weight = 1.0;
        }
        self.weight *= std::f64::consts::LN_2.mul_add(1.0 / HALF_LIFE, 1.0);
        self.observed += 1;
        *self.counts.entry(RequestClass::from_shape(shape)).or_default() += self.weight;
    }

    /// Builds the tables again if the number of requests has grown by a tenth. Returns true if the tables
    /// changed.
    pub fn refresh(&mut self, cluster: &Cluster, horizon: Horizon) -> bool {
        let fresh = self.observed - self.built_at;
        let known = self.built_at.min(HALF_LIFE as u64);
        if fresh == 0 || fresh < (known / 10).max(1) {
            return false;
        }
        self.built_at = self.observed;
        self.counts.values_mut().for_each(|count| *count /= self.weight);
        self.weight = 1.0;
        self.counts.retain(|_, count| *count > 1e-3);
        let mut classes: Vec<(RequestClass, f64)> = self.counts.iter().map(|(k, n)| (*k, *n)).collect();
        classes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let sum: f64 = classes.iter().map(|(_, n)| n).sum();
        let pressure = pressure(&classes, cluster);
        let mut seen = 0.0;
        let mut kept = 0;
        for (_, n) in &mut classes {
            if seen >= 1.0 - TAIL || kept >= MAX_CLASSES {
                break;
            }
            *n /= sum;
            seen += *n;
            kept += 1;
        }
        classes.truncate(kept);
        let before = |class: &RequestClass| {
            self.newest.classes.iter().find(|(c, _)| c == class).map_or(0.0, |(_, q)| *q)
        };
        let moved: f64 = classes.iter().map(|(k, q)| (q - before(k)).abs()).sum();
        if moved < LEAST_CHANGE && self.newest.tables.len() == cluster.models().len() {
            return false;
        }
        let version = self.newest.version + 1;
        let mut newest = DemandTables { version, classes, tables: Vec::new(), pressure };
        newest.tables = (0..cluster.models().len())
            .map(|m| newest.table(u8::try_from(m).unwrap_or(u8::MAX), cluster, horizon))
            .collect();
        self.newest = Arc::new(newest);
        true
    }
}

impl DemandTables {
    /// A number that grows with each change of the tables.
    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn classes(&self) -> &[(RequestClass, f64)] {
        &self.classes
    }

    /// The demand of requests that accept some models only for this model, divided by the model's part of the
    /// cluster.
    pub fn pressure(&self, model: ModelIx) -> f64 {
        self.pressure.get(usize::from(model)).copied().unwrap_or(0.0)
    }

    fn table(&self, model: ModelIx, cluster: &Cluster, horizon: Horizon) -> Table {
        let here: Vec<&(RequestClass, f64)> =
            self.classes.iter().filter(|(k, _)| k.count > 0 && k.models.has(model)).collect();
        let sum: f64 = here.iter().map(|(_, q)| q).sum();
        let mut cpus: Vec<i64> = here.iter().map(|(k, _)| k.cpu_milli).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let mut needs: Vec<u16> = here
            .iter()
            .filter(|(k, _)| k.count == 1)
            .map(|(k, _)| k.each_milli())
            .filter(|n| *n > 0)
            .collect();
        needs.sort_unstable();
        needs.dedup();
        let column: Vec<u8> = (0..=WHOLE_MILLI)
            .map(|free| u8::try_from(needs.iter().filter(|n| **n <= free).count()).unwrap_or(u8::MAX))
            .collect();
        let columns = needs.len() + 1;
        let sum_of = |test: fn(&Device) -> bool| -> f64 {
            here.iter().filter(|(k, _)| test(&k.device)).map(|(_, q)| q).sum()
        };
        // The probability that none of `requests` coming requests can use a part. `until` gives the number of
        // all requests among which the horizon's number has the kind of the part.
        let unusable = |p: f64, requests: f64| {
            if sum > 0.0 { (1.0 - (p / sum).min(1.0)).powf(requests) as f32 } else { 1.0 }
        };
        let until = |count: f64, of_kind: f64| count * sum / of_kind.max(f64::MIN_POSITIVE);
        let shares = until(horizon.shares, sum_of(|d| matches!(d, Device::Share { .. })));
        let slices = until(horizon.slices, sum_of(|d| matches!(d, Device::Slice { .. })));
        let board = cluster.models().get(usize::from(model)).and_then(|m| m.board);
        let (mut part, mut full) = (Vec::new(), Vec::new());
        for row in 0..=cpus.len() {
            let able = |k: &RequestClass| row > 0 && cpus.get(row - 1).is_some_and(|c| k.cpu_milli <= *c);
            for column in 0..columns {
                let most = column.checked_sub(1).and_then(|c| needs.get(c)).copied().unwrap_or(0);
                let fits = |k: &RequestClass| {
                    k.count == 1
                        && matches!(k.device, Device::Share { .. } | Device::Board)
                        && k.each_milli() <= most
                };
                let p = here.iter().filter(|(k, _)| able(k) && fits(k)).map(|(_, q)| q).sum();
                part.push(unusable(p, shares));
            }
            for free in 0..=MAX_GPUS {
                let fits = |k: &RequestClass| match k.device {
                    Device::Board => k.count as usize <= free,
                    Device::Share { .. } => free > 0,
                    Device::Slice { .. } => free > 0 && board.is_some(),
                };
                let p = here.iter().filter(|(k, _)| able(k) && fits(k)).map(|(_, q)| q).sum();
                full.push(unusable(p, horizon.boards));
            }
        }
        let sliced = board.map_or_else(Vec::new, |b| sliced_table(b, &here, sum, slices));
        Table { cpus, column, columns, part, full, sliced }
    }

    /// The row of a model's tables for this number of free processors.
    pub fn row(&self, model: ModelIx, cpu_milli: i64) -> usize {
        self.tables.get(usize::from(model)).map_or(0, |t| t.cpus.partition_point(|c| *c <= cpu_milli))
    }

    /// Unusable thousandths of a shared board with `free` thousandths left.
    pub fn unusable_shared(&self, model: ModelIx, row: usize, free: u16) -> f32 {
        let Some(table) = self.tables.get(usize::from(model)) else { return f32::from(free) };
        let column = table.column.get(usize::from(free)).map_or(0, |c| usize::from(*c));
        f32::from(free) * table.part.get(row * table.columns + column).copied().unwrap_or(1.0)
    }

    /// Unusable thousandths of an empty board on a node with `boards` empty boards.
    pub fn unusable_empty(&self, model: ModelIx, row: usize, boards: usize) -> f32 {
        let table = self.tables.get(usize::from(model));
        let at = row * (MAX_GPUS + 1) + boards.min(MAX_GPUS);
        f32::from(WHOLE_MILLI) * table.and_then(|t| t.full.get(at)).copied().unwrap_or(1.0)
    }

    /// Unusable thousandths of a sliced board with these occupied slices.
    pub fn unusable_sliced(&self, model: ModelIx, mask: u8) -> f32 {
        let table = self.tables.get(usize::from(model));
        table.and_then(|t| t.sliced.get(usize::from(mask))).copied().unwrap_or(0.0)
    }
}

/// For each set of occupied slices: the expected thousandths that the next requests do not use.
fn sliced_table(board: usize, here: &[&(RequestClass, f64)], sum: f64, requests: f64) -> Vec<f32> {
    let (Some(model), Some(tables)) = (boards().get(board), masks(board)) else { return Vec::new() };
    let slices = model.memory_slices.min(8);
    let each = f64::from(WHOLE_MILLI) / f64::from(slices.max(1));
    (0..=u8::MAX)
        .map(|mask| {
            let mut lost = 0.0;
            for slice in (0..slices).filter(|s| mask >> s & 1 == 0) {
                let mut p = 0.0;
                for (class, q) in here {
                    let Device::Slice { profile } = class.device else { continue };
                    let Some(own) = model.profiles.get(usize::from(profile)) else { continue };
                    let starts = tables.starts(usize::from(profile), mask);
                    if (0..8).any(|s| starts >> s & 1 != 0 && cover(own, s) >> slice & 1 != 0) {
                        p += q;
                    }
                }
                let rest: f64 = if sum > 0.0 { 1.0 - (p / sum).min(1.0) } else { 1.0 };
                lost += each * rest.powf(requests);
            }
            lost as f32
        })
        .collect()
}

/// The pressure on each model; see [`DemandTables::pressure`].
fn pressure(classes: &[(RequestClass, f64)], cluster: &Cluster) -> Vec<f64> {
    let models = cluster.models();
    let mut capacity = vec![0.0; models.len()];
    for node in cluster.nodes() {
        for gpu in &node.facts.gpus {
            let index = models.iter().position(|m| m.name == gpu.model);
            if let Some(sum) = index.and_then(|i| capacity.get_mut(i)) {
                *sum += f64::from(WHOLE_MILLI);
            }
        }
    }
    let all: f64 = capacity.iter().sum();
    let has = |set: Models, m: usize| u8::try_from(m).is_ok_and(|m| set.has(m));
    let mut asked = vec![0.0; models.len()];
    let mut demand = 0.0;
    for (class, n) in classes {
        let shape = Shape {
            device: class.device,
            count: class.count,
            models: class.models,
            cpu_milli: 0,
            memory_mib: 0,
            nvlink: false,
            images: false,
            rdma: false,
            network: NetworkNeed::Any,
            gang: false,
            storage: 0,
            tenancy: Tenancy::COMMON,
            work: crate::pools::Work::Training,
        };
        let milli = f64::from(shape.milli(models)) * n;
        demand += milli;
        let able: f64 =
            capacity.iter().enumerate().filter(|(m, _)| has(class.models, *m)).map(|(_, c)| c).sum();
        if able >= all || able <= 0.0 {
            continue;
        }
        for (m, sum) in asked.iter_mut().enumerate().filter(|(m, _)| has(class.models, *m)) {
            *sum += milli * capacity.get(m).copied().unwrap_or(0.0) / able;
        }
    }
    let part = |(asked, own): (&f64, &f64)| {
        if demand > 0.0 && *own > 0.0 { (asked / demand) / (own / all) } else { 0.0 }
    };
    asked.iter().zip(&capacity).map(part).collect()
}
