//! When a run had come how far, from the course in its JSON document: pure.

use skt_hpl::base::course::Course;

/// Seconds from the timer's start until iteration `k` began, between two points of the course in proportion.
///
/// # Errors
/// Where the course does not go so far.
pub fn passed(course: &Course, k: u64) -> Result<f64, String> {
    let at = course.iteration.iter().position(|&iteration| iteration >= k);
    let at = at.filter(|_| course.seconds.len() == course.iteration.len());
    let at = at.ok_or_else(|| format!("the run's course does not tell of iteration {k}"))?;
    let (to, then) = (course.iteration[at], course.seconds[at]);
    if at == 0 || to == k {
        return Ok(then);
    }
    let (from, first) = (course.iteration[at - 1], course.seconds[at - 1]);
    Ok(first + (then - first) * (k - from) as f64 / (to - from) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_points_time_passes_evenly() {
        let course =
            Course { iteration: vec![0, 4, 10], seconds: vec![0.0, 2.0, 3.5], ..Course::default() };
        let at = |k| passed(&course, k).unwrap();
        assert_eq!([0, 2, 4, 6, 10].map(at), [0.0, 1.0, 2.0, 2.5, 3.5]);
        assert!(passed(&course, 11).is_err());
    }
}
