//! The search for placements by trying all of them: boards, parts of boards, processors and power.

use super::*;
use berth_types::node_pools::NodePool;

/// True if a part fits on a board beside the parts in use.
pub(super) fn fits_beside(host: &Host, used: &[(Part, u8)], part: Part, org: u8) -> bool {
    let table = table(host.model);
    match part {
        Part::Whole => used.is_empty() && !keeps_mig(host),
        Part::Share(milli) => {
            let shared = used.iter().map(|(p, o)| match p {
                Part::Share(m) if *o == org => i64::from(*m),
                _ => 10_000,
            });
            !keeps_mig(host) && shared.sum::<i64>() + i64::from(milli) <= 1_000
        }
        Part::Slice(new) => {
            let Some(board) = table.filter(|b| host.mig || b.live_toggle) else { return false };
            let Some(profile) = board.profile(new.profile_id) else { return false };
            let span = |i: &Instance, size: u32| (i.start, i.start + size);
            let (from, until) = span(&new, profile.size);
            profile.starts.contains(&new.start)
                && used.iter().all(|(p, _)| match p {
                    Part::Slice(old) => board.profile(old.profile_id).is_some_and(|q| {
                        let (a, b) = span(old, q.size);
                        (until <= a || b <= from) && (profile.group.is_none() || q.group != profile.group)
                    }),
                    _ => false,
                })
        }
    }
}

/// The parts of a board that can serve as one device of a job.
pub(super) fn parts_for(host: &Host, job: &Job) -> Vec<Part> {
    match job.device {
        DeviceKind::Share(milli) => vec![Part::Share(milli)],
        DeviceKind::Board => vec![Part::Whole],
        DeviceKind::Slice(index) => {
            let name = &table(job.models[0]).expect("slices").profiles[index].name;
            let profile = table(host.model).and_then(|b| b.profile_by_name(name));
            let slice = |start: &u32, id| Part::Slice(Instance { profile_id: id, start: *start });
            profile.into_iter().flat_map(|p| p.starts.iter().map(move |s| slice(s, p.id))).collect()
        }
    }
}

impl Judge<'_> {
    /// The latest expected end of a run; `i64::MAX` if unknown, `i64::MIN` for a job that does not run.
    pub(super) fn expected_end(&self, n: usize) -> Option<i64> {
        let State::Running(run) = &self.world.jobs[n].state else { return Some(i64::MIN) };
        Some(match run.ends {
            None => i64::MAX,
            // A run that is late for long may hang: it is expected to be late as long again.
            Some(end) if end + HANGS_S < self.world.now => 2 * self.world.now - end,
            Some(end) if end <= self.world.now => self.world.now + LATE_S,
            Some(end) => end,
        })
    }

    /// True if the run of a job is expected to use its devices at a time.
    pub(super) fn uses_devices_at(&self, n: usize, at: i64, query: &Query<'_>) -> bool {
        let runs = matches!(self.world.jobs[n].state, State::Running(_));
        runs && !query.gone.contains(&n)
            && (at <= self.world.now || self.expected_end(n).is_some_and(|end| end > at))
    }

    /// The parts of a board that are in use or promised in the time of a query, each with its organization.
    pub(super) fn used_parts(&self, host: usize, board: usize, query: &Query<'_>) -> Vec<(Part, u8)> {
        let mut out = Vec::new();
        for (n, job) in self.world.jobs.iter().enumerate() {
            let State::Running(run) = &job.state else { continue };
            if self.uses_devices_at(n, query.from, query) {
                let here = run.ranks.iter().filter(|(h, _)| *h == host).flat_map(|(_, parts)| parts);
                out.extend(here.filter(|(b, _)| *b == board).map(|(_, part)| (*part, job.spec.org)));
            }
        }
        for promise in self.overlapping(query) {
            let here = promise.parts.iter().filter(|(h, b, _)| (*h, *b) == (host, board));
            out.extend(here.map(|(.., part)| (*part, promise.org)));
        }
        out
    }

    /// The promises that overlap with the time of a query.
    pub(super) fn overlapping<'q>(
        &self,
        query: &'q Query<'_>,
    ) -> impl Iterator<Item = &'q Promise> + use<'q> {
        query.promises.iter().filter(|p| p.from < query.until && query.from < p.until)
    }

    /// The times in a query at which the use can grow.
    pub(super) fn growth_times(&self, query: &Query<'_>) -> Vec<i64> {
        self.overlapping(query).map(|p| p.from).filter(|f| *f > query.from).chain([query.from]).collect()
    }

    /// The thousandths of a processor that are free on a host in the time of a query.
    pub(super) fn cpus_left(&self, host: usize, query: &Query<'_>, within: Option<&Promise>) -> i64 {
        if let Some(booked) = within.filter(|w| w.cpus > 0) {
            return self
                .growth_times(query)
                .into_iter()
                .map(|at| self.cpus_inside(host, booked, at, query))
                .min()
                .unwrap_or(0);
        }
        let left = self.growth_times(query).into_iter().map(|at| {
            let active: Vec<&Promise> =
                self.overlapping(query).filter(|p| p.from <= at && at < p.until).collect();
            let here = |p: &&Promise| p.parts.iter().any(|(h, ..)| *h == host);
            let mut left = self.world.hosts[host].cpus;
            let mut inside: Vec<(BookingId, i64)> = Vec::new();
            for (n, job) in self.world.jobs.iter().enumerate() {
                let State::Running(run) = &job.state else { continue };
                if !self.uses_devices_at(n, at, query) || !run.ranks.iter().any(|(h, _)| *h == host) {
                    continue;
                }
                let id = job.spec.inside.map(crate::world::booking_id);
                match id.filter(|id| active.iter().any(|p| p.id == *id)) {
                    Some(id) => inside.push((id, job.spec.cpus)),
                    None => left -= job.spec.cpus,
                }
            }
            for promise in active.into_iter().filter(here) {
                let used = inside.iter().filter(|(id, _)| *id == promise.id).map(|(_, c)| c).sum::<i64>();
                left -= promise.cpus.max(used);
            }
            left
        });
        left.min().unwrap_or(0)
    }

    /// The thousandths of a processor that a reservation has free on a host at a time.
    pub(super) fn cpus_inside(&self, host: usize, booked: &Promise, at: i64, query: &Query<'_>) -> i64 {
        let runs = |n: &usize| {
            let State::Running(run) = &self.world.jobs[*n].state else { return false };
            self.job(*n).inside.map(crate::world::booking_id) == Some(booked.id)
                && run.ranks.iter().any(|(h, _)| *h == host)
                && self.uses_devices_at(*n, at, query)
        };
        let used: i64 = (0..self.world.jobs.len()).filter(runs).map(|n| self.job(n).cpus).sum();
        let held =
            self.overlapping(query).filter(|p| p.kind == BookingKind::Hold && p.from <= at && at < p.until);
        let held: i64 = held.filter(|p| p.parts.iter().any(|(h, ..)| *h == host)).map(|p| p.cpus).sum();
        booked.cpus - used - held
    }

    /// True if a host takes the work of an organization: its own hosts always, those of others never, and those of
    /// nobody unless it uses only its own.
    pub(super) fn takes(&self, host: usize, org: u8) -> bool {
        match self.world.dedicated[host] {
            Some(other) if other != org => false,
            Some(_) => true,
            None => !self.world.own_only[usize::from(org)],
        }
    }

    /// True if the pool of a host takes a job: a host for training all but replicas, one for inference replicas and jobs
    /// that may be preempted.
    fn suits_pool(&self, host: usize, job: &Job) -> bool {
        match self.world.pools[host] {
            NodePool::Both => true,
            NodePool::Training => !job.replica,
            NodePool::Inference => job.replica || job.preemptible,
        }
    }

    /// All choices of devices of a host for one rank of a job.
    pub(super) fn choices(&self, host: usize, query: &Query<'_>, within: Option<&Promise>) -> Vec<Parts> {
        let (spec, job) = (self.world.hosts[host], *self.job(query.job));
        if !self.world.open[host]
            || !job.models.contains(&spec.model)
            || !self.takes(host, job.org)
            || !self.suits_pool(host, &job)
            || self.cpus_left(host, query, within) < job.cpus
        {
            return Vec::new();
        }
        let mut done: Vec<Parts> = vec![Vec::new()];
        for _ in 0..job.count {
            let mut next: Vec<Parts> = Vec::new();
            for chosen in &done {
                for board in chosen.last().map_or(0, |(b, _)| *b)..spec.boards {
                    if board == 0 && !self.world.healthy[host] {
                        continue;
                    }
                    for part in parts_for(&spec, &job) {
                        let mut used = self.used_parts(host, board, query);
                        used.extend(chosen.iter().filter(|(b, _)| *b == board).map(|(_, p)| (*p, job.org)));
                        let free = fits_beside(&spec, &used, part, job.org);
                        if free && within.is_none_or(|w| allows(&spec, w, host, board, part)) {
                            next.push(chosen.iter().copied().chain([(board, part)]).collect());
                        }
                    }
                }
            }
            next.sort_by_key(|parts| format!("{parts:?}"));
            next.dedup();
            done = next;
        }
        done
    }

    /// The boards that use power at a time.
    pub(super) fn powered_boards(&self, at: i64, query: &Query<'_>) -> BTreeSet<(usize, usize)> {
        let mut out = BTreeSet::new();
        for (n, job) in self.world.jobs.iter().enumerate() {
            if let State::Running(run) = &job.state
                && self.uses_devices_at(n, at, query)
            {
                out.extend(run.ranks.iter().flat_map(|(h, parts)| parts.iter().map(|(b, _)| (*h, *b))));
            }
        }
        for promise in self
            .overlapping(query)
            .filter(|p| p.from <= at && at < p.until && p.kind != BookingKind::Maintenance)
        {
            out.extend(promise.parts.iter().map(|(h, b, _)| (*h, *b)));
        }
        out
    }

    /// True if the power budgets of the racks allow these boards in the time of a query.
    pub(super) fn is_within_power(&self, boards: &BTreeSet<(usize, usize)>, query: &Query<'_>) -> bool {
        let Some(budget) = self.world.budget.filter(|_| query.powered) else { return true };
        self.growth_times(query).into_iter().all(|at| {
            let before = self.powered_boards(at, query);
            let mut racks: BTreeSet<u8> = boards.iter().map(|(h, _)| self.world.hosts[*h].rack).collect();
            // Only the racks with a promise that begins at this time need a check.
            let begins = |rack: &u8| {
                let mut begun = self.overlapping(query).filter(|p| p.from == at);
                at == query.from
                    || begun.any(|p| p.parts.iter().any(|(h, ..)| self.world.hosts[*h].rack == *rack))
            };
            racks.retain(begins);
            racks.into_iter().all(|rack| {
                let watts = |set: &BTreeSet<(usize, usize)>| {
                    let here = set.iter().filter(|(h, _)| self.world.hosts[*h].rack == rack);
                    here.map(|(h, _)| counted_watts(self.world.hosts[*h].model, None)).sum::<i64>()
                };
                let after: BTreeSet<(usize, usize)> = before.union(boards).copied().collect();
                watts(&after) <= budget || watts(&after) == watts(&before)
            })
        })
    }

    /// The hosts for a rank of a job, each with all choices of devices.
    pub(super) fn host_choices(
        &self,
        query: &Query<'_>,
        within: Option<&Promise>,
    ) -> Vec<(usize, Vec<Parts>)> {
        (0..self.world.hosts.len())
            .filter(|h| within.is_none_or(|w| w.parts.iter().any(|(host, ..)| host == h)))
            .map(|host| (host, self.choices(host, query, within)))
            .filter(|(_, choices)| !choices.is_empty())
            .collect()
    }

    /// The sets of these hosts with the job's number of nodes and its nearness.
    pub(super) fn groups(&self, job: usize, choices: &[(usize, Vec<Parts>)]) -> Vec<Vec<usize>> {
        let job = self.job(job);
        let all: BTreeSet<usize> = choices.iter().map(|(h, _)| *h).collect();
        let mut groups = subsets(&all, job.nodes as usize);
        groups.retain(|hosts| {
            let racks: BTreeSet<u8> = hosts.iter().map(|h| self.world.hosts[*h].rack).collect();
            !job.near || racks.len() <= 1
        });
        groups
    }

    /// True if there is a placement for the whole job in the whole time of a query.
    pub(super) fn fits(&self, query: &Query<'_>, within: Option<&Promise>) -> bool {
        let choices = self.host_choices(query, within);
        let boards = |host: usize, parts: &Parts| -> BTreeSet<(usize, usize)> {
            parts.iter().map(|(b, _)| (host, *b)).collect()
        };
        self.groups(query.job, &choices).into_iter().any(|hosts| {
            let mut sets: Vec<BTreeSet<(usize, usize)>> = vec![BTreeSet::new()];
            for (host, choices) in choices.iter().filter(|(h, _)| hosts.contains(h)) {
                let own: BTreeSet<BTreeSet<(usize, usize)>> =
                    choices.iter().map(|parts| boards(*host, parts)).collect();
                sets = sets
                    .iter()
                    .flat_map(|s| own.iter().map(move |o| s.union(o).copied().collect()))
                    .collect();
            }
            sets.iter().any(|set| self.is_within_power(set, query) && self.is_within_reserve(set, query))
        })
    }

    /// All placements for the whole job in the whole time of a query.
    pub(super) fn placements(
        &self,
        query: &Query<'_>,
        within: Option<&Promise>,
    ) -> Vec<Vec<(usize, usize, Part)>> {
        let choices = self.host_choices(query, within);
        let mut out: Vec<Vec<(usize, usize, Part)>> = Vec::new();
        for hosts in self.groups(query.job, &choices) {
            let mut all: Vec<Vec<(usize, usize, Part)>> = vec![Vec::new()];
            for (host, choices) in choices.iter().filter(|(h, _)| hosts.contains(h)) {
                let named = |parts: &Parts| -> Vec<(usize, usize, Part)> {
                    parts.iter().map(|(b, part)| (*host, *b, *part)).collect()
                };
                all = all
                    .iter()
                    .flat_map(|a| choices.iter().map(move |c| a.iter().copied().chain(named(c)).collect()))
                    .collect();
            }
            out.extend(all);
        }
        out.retain(|parts| {
            let boards = parts.iter().map(|(h, b, _)| (*h, *b)).collect();
            self.is_within_power(&boards, query) && self.is_within_reserve(&boards, query)
        });
        out
    }
}

/// True if the jobs of a reservation may use this part of a board.
pub(super) fn allows(host: &Host, within: &Promise, at: usize, board: usize, part: Part) -> bool {
    let full = table(host.model).filter(|b| !b.live_toggle).and_then(|b| b.full_profile()).map(|p| p.id);
    let span = |i: &Instance| {
        let size = table(host.model).and_then(|b| b.profile(i.profile_id)).map_or(0, |p| p.size);
        i.start..i.start + size
    };
    let own: Vec<Part> =
        within.parts.iter().filter(|(h, b, _)| (*h, *b) == (at, board)).map(|(.., part)| *part).collect();
    let whole = own.iter().any(|p| match p {
        Part::Whole => true,
        Part::Slice(i) => Some(i.profile_id) == full,
        Part::Share(_) => false,
    });
    let slices: BTreeSet<u32> =
        own.iter().flat_map(|p| if let Part::Slice(i) = p { span(i) } else { 0..0 }).collect();
    whole || matches!(part, Part::Slice(i) if span(&i).all(|s| slices.contains(&s)))
}

/// All subsets of a size, each in ascending order.
pub(super) fn subsets(items: &BTreeSet<usize>, size: usize) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..size {
        out = out
            .iter()
            .flat_map(|s| {
                let after = items.iter().filter(|n| s.last().is_none_or(|last| *n > last));
                after.map(|n| s.iter().copied().chain([*n]).collect::<Vec<_>>())
            })
            .collect();
    }
    out
}
