//! Times at which a run began its iterations, from the timeline in its JSON document. Pure functions.

use skt_hpl::base::timeline::Timeline;

/// Returns the seconds from the start of the timer to the beginning of iteration `k`, interpolated between two points of the
/// timeline.
///
/// # Errors
/// If the timeline ends before iteration `k`.
pub fn passed(timeline: &Timeline, k: u64) -> Result<f64, String> {
    let at = timeline.iteration.iter().position(|&iteration| iteration >= k);
    let at = at.filter(|_| timeline.seconds.len() == timeline.iteration.len());
    let at = at.ok_or_else(|| format!("the run's timeline does not contain iteration {k}"))?;
    let (to, then) = (timeline.iteration[at], timeline.seconds[at]);
    if at == 0 || to == k {
        return Ok(then);
    }
    let (from, first) = (timeline.iteration[at - 1], timeline.seconds[at - 1]);
    Ok(first + (then - first) * (k - from) as f64 / (to - from) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_points_time_passes_evenly() {
        let timeline = Timeline {
            iteration: vec![0, 4, 10],
            seconds: vec![0.0, 2.0, 3.5],
            ..Timeline::default()
        };
        let at = |k| passed(&timeline, k).unwrap();
        assert_eq!([0, 2, 4, 6, 10].map(at), [0.0, 1.0, 2.0, 2.5, 3.5]);
        assert!(passed(&timeline, 11).is_err());
    }
}
