//! The revised simplex method for a linear program whose columns come one by one: maximize the value of the
//! columns in use, while no resource is used above its limit.

/// Smaller entries of a column count as zero, because a division by them loses all digits.
const TINY: f64 = 1e-9;

/// An activity with its value, and what one unit of it uses of each resource.
pub struct Column {
    pub value: f64,
    pub uses: Vec<f64>,
}

pub struct Simplex {
    /// The inverse of the matrix of the columns in use, by rows.
    inverse: Vec<Vec<f64>>,
    /// The amount of each column in use.
    amounts: Vec<f64>,
    /// The value of each column in use.
    values: Vec<f64>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Simplex {
    /// Only the slack of each resource is in use. The limits are zero or more.
    pub fn new(limits: &[f64]) -> Self {
        let unit = |row: usize| -> Vec<f64> {
            (0..limits.len()).map(|at| if at == row { 1.0 } else { 0.0 }).collect()
        };
        Self {
            inverse: (0..limits.len()).map(unit).collect(),
            amounts: limits.to_vec(),
            values: vec![0.0; limits.len()],
        }
    }

    /// The value of the columns in use.
    pub fn value(&self) -> f64 {
        dot(&self.values, &self.amounts)
    }

    /// The price of each resource. A column is worth a place in the solution if its value is above the price
    /// of what it uses. A resource with a price below zero is better left unused.
    pub fn prices(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.amounts.len()];
        for (value, row) in self.values.iter().zip(&self.inverse).filter(|(value, _)| **value != 0.0) {
            for (price, entry) in prices.iter_mut().zip(row) {
                *price += value * entry;
            }
        }
        prices
    }

    /// Uses as much of a column as the limits allow, in place of another one. Returns false if nothing limits
    /// the column.
    pub fn enter(&mut self, column: &Column) -> bool {
        let used: Vec<f64> = self.inverse.iter().map(|row| dot(row, &column.uses)).collect();
        let limits = self.amounts.iter().zip(&used).enumerate().filter(|(_, (_, used))| **used > TINY);
        let least = limits.map(|(row, (own, used))| (own / used, row)).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((amount, leaving)) = least else { return false };
        let (Some(row), Some(pivot)) = (self.inverse.get(leaving), used.get(leaving)) else { return false };
        let pivot_row: Vec<f64> = row.iter().map(|entry| entry / pivot).collect();
        for (row, used) in self.inverse.iter_mut().zip(&used).filter(|(_, used)| **used != 0.0) {
            for (entry, pivot) in row.iter_mut().zip(&pivot_row) {
                *entry -= used * pivot;
            }
        }
        for (own, used) in self.amounts.iter_mut().zip(&used) {
            *own = (*own - used * amount).max(0.0);
        }
        if let Some(row) = self.inverse.get_mut(leaving) {
            *row = pivot_row;
        }
        if let Some(own) = self.amounts.get_mut(leaving) {
            *own = amount;
        }
        if let Some(value) = self.values.get_mut(leaving) {
            *value = column.value;
        }
        true
    }
}
