//! Fits cost coefficients to measured times. Floats, in a fixed order of operations: the same input gives the same result.

use base::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

/// One measured piece of work: what its samples add up to, and how long it took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Sum of lengths.
    pub tokens: f64,
    /// Sum of squared lengths.
    pub squares: f64,
    /// Number of samples.
    pub samples: f64,
    /// Seconds.
    pub seconds: f64,
}

/// `seconds = linear·tokens + quadratic·squares + constant·samples`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fit {
    /// Seconds per token.
    pub linear: f64,
    /// Seconds per squared token.
    pub quadratic: f64,
    /// Seconds per sample.
    pub constant: f64,
    /// Share of the variance of times that is explained.
    pub r_squared: f64,
}

/// Non-negative least squares: of all subsets of coefficients, the best whose members come out non-negative.
pub fn fit(measurements: &[Measurement]) -> Result<Fit> {
    let rows: Vec<([f64; 3], f64)> =
        measurements.iter().map(|row| ([row.tokens, row.squares, row.samples], row.seconds)).collect();
    let flat = rows.iter().flat_map(|row| row.0.iter().chain([&row.1]));
    if let Some(bad) = flat.clone().find(|number| !number.is_finite() || **number < 0.0) {
        return Err(Diagnostic::new(Code::BAD_PROBLEM, format!("a measurement holds {bad}"))
            .hint("tokens, squares, samples and seconds are finite and not negative"));
    }
    let scales: [f64; 3] = std::array::from_fn(|k| rows.iter().map(|row| row.0[k]).fold(0.0, f64::max))
        .map(|m: f64| if m > 0.0 { m } else { 1.0 });
    let candidates = (1..8_u8).filter_map(|subset| {
        let solution = solve(&rows, scales, subset)?;
        let error: f64 = rows.iter().map(|row| (row.1 - dot(&row.0, &solution)).powi(2)).sum();
        Some((error, solution))
    });
    let best = candidates.fold(None, |best: Option<(f64, [f64; 3])>, next| match best {
        Some(best) if best.0 <= next.0 => Some(best),
        _ => Some(next),
    });
    let Some((error, [linear, quadratic, constant])) = best else {
        let what = format!("{} measurements do not determine any coefficient", rows.len());
        return Err(Diagnostic::new(Code::BAD_PROBLEM, what).hint("measure steps of different lengths"));
    };
    let mean = rows.iter().map(|row| row.1).sum::<f64>() / rows.len() as f64;
    let spread: f64 = rows.iter().map(|row| (row.1 - mean).powi(2)).sum();
    let r_squared = if spread > 0.0 { 1.0 - error / spread } else { 1.0 };
    Ok(Fit { linear, quadratic, constant, r_squared })
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// Least squares over the columns of `subset`, each divided by its scale; `None` where singular or a coefficient is negative.
fn solve(rows: &[([f64; 3], f64)], scales: [f64; 3], subset: u8) -> Option<[f64; 3]> {
    let columns: Vec<usize> = (0..3).filter(|column| subset & (1 << column) != 0).collect();
    let size = columns.len();
    let mut matrix = vec![vec![0.0; size + 1]; size];
    for (row, seconds) in rows {
        for (i, a) in columns.iter().enumerate() {
            let left = row[*a] / scales[*a];
            for (j, b) in columns.iter().enumerate() {
                matrix[i][j] += left * row[*b] / scales[*b];
            }
            matrix[i][size] += left * seconds;
        }
    }
    let values = eliminate(&mut matrix)?;
    let mut solution = [0.0; 3];
    for (column, value) in columns.iter().zip(values) {
        solution[*column] = value / scales[*column];
    }
    solution.iter().all(|value| *value >= 0.0 && value.is_finite()).then_some(solution)
}

/// Gauss elimination with row pivots of the augmented `matrix`.
fn eliminate(matrix: &mut [Vec<f64>]) -> Option<Vec<f64>> {
    let size = matrix.len();
    for column in 0..size {
        let pivot =
            (column..size).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()))?;
        if matrix[pivot][column].abs() < 1e-12 {
            return None;
        }
        matrix.swap(column, pivot);
        for row in 0..size {
            if row != column {
                let factor = matrix[row][column] / matrix[column][column];
                let source = matrix[column].clone();
                matrix[row].iter_mut().zip(&source).for_each(|(value, from)| *value -= factor * from);
            }
        }
    }
    Some((0..size).map(|row| matrix[row][size] / matrix[row][row]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(lengths: &[f64]) -> Measurement {
        let tokens = lengths.iter().sum();
        let squares = lengths.iter().map(|length| length * length).sum();
        let samples = lengths.len() as f64;
        Measurement { tokens, squares, samples, seconds: 2e-6 * tokens + 3e-10 * squares + 1e-3 * samples }
    }

    #[test]
    fn it_recovers_the_coefficients() {
        let rows = [&[100.0, 5000.0][..], &[70.0], &[20_000.0, 30.0, 30.0], &[900.0; 7]].map(measured);
        let fit = fit(&rows).unwrap();
        assert!((fit.linear / 2e-6 - 1.0).abs() < 1e-6, "{fit:?}");
        assert!((fit.quadratic / 3e-10 - 1.0).abs() < 1e-6 && (fit.constant / 1e-3 - 1.0).abs() < 1e-6);
        assert!(fit.r_squared > 0.999_999);
    }

    #[test]
    fn a_coefficient_is_never_negative_and_too_little_is_refused() {
        let rows = [measured(&[100.0]), Measurement { seconds: 0.0, ..measured(&[200.0]) }];
        let fitted = fit(&rows).unwrap();
        assert!(fitted.linear >= 0.0 && fitted.quadratic >= 0.0 && fitted.constant >= 0.0);
        assert!(fit(&[]).is_err());
        assert!(fit(&[Measurement { seconds: f64::NAN, ..measured(&[1.0]) }]).is_err());
    }
}
