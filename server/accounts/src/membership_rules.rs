//! Changes of members: an organization always keeps an owner.

use berth_types::accounts::Role;

/// True if an organization with so many `owners` still has one when a member of role `from` gets the role
/// `to`, or (`None`) is no member any more.
pub const fn leaves_an_owner(from: Role, to: Option<Role>, owners: i64) -> bool {
    !matches!(from, Role::Owner) || matches!(to, Some(Role::Owner)) || owners > 1
}

/// True if tokens and invitations that somebody made in an organization's name outlive a change to `to`.
/// Only owners may make them, so they end with being one.
pub const fn keeps_what_was_made(to: Option<Role>) -> bool {
    matches!(to, Some(Role::Owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_last_owner_is_held() {
        assert!(!leaves_an_owner(Role::Owner, None, 1));
        assert!(!leaves_an_owner(Role::Owner, Some(Role::Billing), 1));
        assert!(leaves_an_owner(Role::Owner, Some(Role::Owner), 1));
        assert!(leaves_an_owner(Role::Owner, None, 2));
        for other in [Role::Billing, Role::Member, Role::Viewer] {
            assert!(leaves_an_owner(other, None, 1) && !keeps_what_was_made(Some(other)));
        }
        assert!(keeps_what_was_made(Some(Role::Owner)) && !keeps_what_was_made(None));
    }

    proptest! {
        /// Whatever is asked for, in whatever order: what the rule lets through leaves an owner.
        #[test]
        fn an_organization_never_loses_its_last_owner(
            asked in prop::collection::vec((0usize..4, prop::option::of(0usize..4)), 0..40),
        ) {
            let mut members: Vec<Option<Role>> = vec![Some(Role::Owner), Some(Role::Owner), Some(Role::Member), None];
            for (who, to) in asked {
                let to = to.map(|n| Role::ALL[n]);
                let owners = members.iter().filter(|role| **role == Some(Role::Owner)).count();
                let owners = i64::try_from(owners).unwrap();
                let Some(from) = members[who] else { continue };
                if leaves_an_owner(from, to, owners) {
                    members[who] = to;
                }
                prop_assert!(members.contains(&Some(Role::Owner)));
            }
        }
    }
}
