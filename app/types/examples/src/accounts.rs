//! Examples of accounts, tokens and members.

use super::{PASSWORD, TOKEN_EXPIRY};
use berth_types::accounts::{NewMetricsToken, NewOperatorToken, NewToken, Role, Setup, SignIn, SignUp};
use berth_types::factors::{ConfirmTotp, NewProof, SecondFactorSignIn};
use berth_types::members::{AcceptInvitation, ChangeMember, LookAtInvitation, NewInvitation};
use berth_types::operators::{ChangeOperator, NewOperator, OperatorRole, RemoveOperator};
use berth_types::passkeys::{NewPasskey, PasskeyProof, PasskeySignIn, RenamePasskey};
use berth_types::people::{
    ChangePassword, CompletePasswordReset, CompleteVerification, DeleteAccount, DisableUser,
    NewPasswordReset, PatchMe,
};
use berth_types::scopes::ApiScope;
use berth_types::service_accounts::NewServiceAccount;

pub(super) fn setup() -> Setup {
    Setup {
        token: "dGhlIHRva2VuIG9mIHRoZSBzZXQtdXA".to_owned(),
        email: "operator@example.org".to_owned(),
        password: PASSWORD.to_owned(),
        name: "Grace Hopper".to_owned(),
    }
}

pub(super) fn sign_up() -> SignUp {
    SignUp {
        email: "ada@example.org".to_owned(),
        password: PASSWORD.to_owned(),
        name: "Ada Lovelace".to_owned(),
        organization: "Vision Lab".to_owned(),
    }
}

pub(super) fn sign_in() -> SignIn {
    SignIn { email: "ada@example.org".to_owned(), password: PASSWORD.to_owned() }
}

pub(super) fn patch_me() -> PatchMe {
    PatchMe { name: "Ada King".to_owned() }
}

pub(super) fn change_password() -> ChangePassword {
    ChangePassword { current: PASSWORD.to_owned(), new: "violet anchor nine barometer".to_owned() }
}

pub(super) fn new_password_reset() -> NewPasswordReset {
    NewPasswordReset { email: "ada@example.org".to_owned() }
}

pub(super) fn complete_password_reset() -> CompletePasswordReset {
    CompletePasswordReset {
        token: "dGhlIHBhcnQgYWZ0ZXIgdGhlIG51bWJlciBzaWdu".to_owned(),
        password: PASSWORD.to_owned(),
    }
}

pub(super) fn complete_verification() -> CompleteVerification {
    CompleteVerification { token: "dGhlIHBhcnQgYWZ0ZXIgdGhlIG51bWJlciBzaWdu".to_owned() }
}

pub(super) fn delete_account() -> DeleteAccount {
    DeleteAccount { password: PASSWORD.to_owned() }
}

pub(super) fn disable_user() -> DisableUser {
    DisableUser { reason: "The account sends unwanted invitations.".to_owned() }
}

pub(super) fn new_operator() -> NewOperator {
    NewOperator {
        email: "grace@example.org".to_owned(),
        role: OperatorRole::Fleet,
        reason: "Grace replaces boards in the second hall.".to_owned(),
    }
}

pub(super) fn change_operator() -> ChangeOperator {
    ChangeOperator { role: OperatorRole::Auditor, reason: "The hall is complete.".to_owned() }
}

pub(super) fn remove_operator() -> RemoveOperator {
    RemoveOperator { reason: "Grace works elsewhere.".to_owned() }
}

pub(super) fn second_factor_sign_in() -> SecondFactorSignIn {
    let challenge = "dGhlIGNoYWxsZW5nZSBvZiB0aGUgZmlyc3Qgc3RlcA".to_owned();
    SecondFactorSignIn { challenge, code: "492 039".to_owned() }
}

pub(super) fn confirm_totp() -> ConfirmTotp {
    ConfirmTotp { code: "492 039".to_owned() }
}

pub(super) fn new_proof() -> NewProof {
    NewProof { password: Some(PASSWORD.to_owned()), code: None }
}

pub(super) fn new_passkey() -> NewPasskey {
    NewPasskey { name: "Laptop".to_owned(), credential: r#"{"type":"public-key"}"#.to_owned() }
}

pub(super) fn rename_passkey() -> RenamePasskey {
    RenamePasskey { name: "Phone".to_owned() }
}

pub(super) fn passkey_sign_in() -> PasskeySignIn {
    PasskeySignIn { credential: r#"{"type":"public-key"}"#.to_owned(), challenge: None }
}

pub(super) fn passkey_proof() -> PasskeyProof {
    PasskeyProof { credential: r#"{"type":"public-key"}"#.to_owned() }
}

pub(super) fn new_token() -> NewToken {
    NewToken {
        name: "nightly training".to_owned(),
        role: Role::Member,
        scopes: vec![ApiScope::JobsWrite, ApiScope::StorageWrite],
        networks: vec!["192.0.2.0/24".to_owned()],
        expires_at: Some(TOKEN_EXPIRY),
        service_account: None,
    }
}

pub(super) fn new_operator_token() -> NewOperatorToken {
    NewOperatorToken {
        name: "inventory".to_owned(),
        scopes: vec![ApiScope::FleetRead],
        networks: Vec::new(),
        expires_at: Some(TOKEN_EXPIRY),
    }
}

pub(super) fn new_metrics_token() -> NewMetricsToken {
    NewMetricsToken { name: "monitoring".to_owned(), expires_at: Some(TOKEN_EXPIRY) }
}

pub(super) fn new_service_account() -> NewServiceAccount {
    NewServiceAccount { name: "nightly runs".to_owned(), role: Role::Member }
}

pub(super) fn change_member() -> ChangeMember {
    ChangeMember { role: Role::Billing }
}

pub(super) fn new_invitation() -> NewInvitation {
    NewInvitation { email: "alan@example.org".to_owned(), role: Role::Member }
}

pub(super) fn look_at_invitation() -> LookAtInvitation {
    LookAtInvitation { token: "dGhlIHBhcnQgYWZ0ZXIgdGhlIG51bWJlciBzaWdu".to_owned() }
}

pub(super) fn accept_invitation() -> AcceptInvitation {
    AcceptInvitation {
        token: "dGhlIHBhcnQgYWZ0ZXIgdGhlIG51bWJlciBzaWdu".to_owned(),
        name: Some("Alan Turing".to_owned()),
        password: Some(PASSWORD.to_owned()),
    }
}
