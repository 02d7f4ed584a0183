//! The rules for changes of members. An organization always keeps an owner.

use berth_types::accounts::Role;

/// True if an organization with `owners` owners keeps an owner after a change of a member's role from `from`
/// to `to`. `None` means the removal of the member.
pub const fn keeps_an_owner(from: Role, to: Option<Role>, owners: i64) -> bool {
    !matches!(from, Role::Owner) || matches!(to, Some(Role::Owner)) || owners > 1
}

/// True if the tokens and invitations of a member stay valid after a change of the member's role to `to`.
/// Only owners may create them, so they end with the role of owner.
pub const fn keeps_tokens_and_invitations(to: Option<Role>) -> bool {
    matches!(to, Some(Role::Owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_last_owner_must_stay() {
        assert!(!keeps_an_owner(Role::Owner, None, 1));
        assert!(!keeps_an_owner(Role::Owner, Some(Role::Billing), 1));
        assert!(keeps_an_owner(Role::Owner, Some(Role::Owner), 1));
        assert!(keeps_an_owner(Role::Owner, None, 2));
        for other in [Role::Billing, Role::Member, Role::Viewer] {
            assert!(keeps_an_owner(other, None, 1) && !keeps_tokens_and_invitations(Some(other)));
        }
        assert!(keeps_tokens_and_invitations(Some(Role::Owner)) && !keeps_tokens_and_invitations(None));
    }

    proptest! {
        /// Every sequence of permitted changes keeps an owner.
        #[test]
        fn an_organization_never_loses_its_last_owner(
            changes in prop::collection::vec((0usize..4, prop::option::of(0usize..4)), 0..40),
        ) {
            let mut members: Vec<Option<Role>> = vec![Some(Role::Owner), Some(Role::Owner), Some(Role::Member), None];
            for (index, to) in changes {
                let to = to.map(|n| Role::ALL[n]);
                let owners = members.iter().filter(|role| **role == Some(Role::Owner)).count();
                let owners = i64::try_from(owners).unwrap();
                let Some(from) = members[index] else { continue };
                if keeps_an_owner(from, to, owners) {
                    members[index] = to;
                }
                prop_assert!(members.contains(&Some(Role::Owner)));
            }
        }
    }
}
