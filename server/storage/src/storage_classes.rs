//! Storage classes: file systems of the operator's nodes for volumes, and their grants to organizations.
//!
//! The portal has none of the files of such a volume. It gives each organization with a class a number, from which the
//! workers derive the group of its files.

pub mod routes;

use berth_core::volumes::is_name;
use berth_foundation::Context;
use berth_foundation::{Caller, Right};
use berth_store::volumes::classes::{StoredClass, StoredGrant};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::OrgId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::storage_classes::{OrgStorageClass, StorageClass, StorageClassOrg};
use futures::FutureExt;

/// The most storage classes of a portal.
const MAX_CLASSES: usize = 32;
/// The most organizations of a class.
const MAX_GRANTS: i64 = 500;

/// Declares storage classes and grants them.
#[derive(Clone)]
pub struct StorageClasses {
    context: Context,
}

fn in_use(detail: String) -> Problem {
    Problem::conflict("storage_class.in_use", "Storage class in use", detail)
}

fn limit(detail: String) -> Problem {
    Problem::conflict("storage_class.limit", "Too many storage classes", detail)
}

/// All classes with their organizations and the number of their nodes, by name.
async fn read_classes(tx: &mut Tx<'_>) -> Result<Vec<StorageClass>, StoreError> {
    let mounts = store::volumes::classes::list_host_mounts(tx).await?;
    let grants = store::volumes::classes::list_grants(tx).await?;
    let class = |row: StoredClass| {
        let nodes = mounts.iter().filter(|(_, mounts)| mounts.iter().any(|mount| mount.name == row.name));
        let org = |grant: &StoredGrant| StorageClassOrg { org: grant.org_id, name: grant.org_name.clone() };
        StorageClass {
            nodes: u32::try_from(nodes.count()).unwrap_or(u32::MAX),
            orgs: grants.iter().filter(|grant| grant.class == row.name).map(org).collect(),
            name: row.name.clone(),
            created_by: row.created_by.clone(),
            created_at: row.created_at,
        }
    };
    Ok(store::volumes::classes::list(tx).await?.into_iter().map(class).collect())
}

/// A class by its name.
async fn read_class(tx: &mut Tx<'_>, name: &str) -> Result<StorageClass, StoreError> {
    let classes = read_classes(tx).await?;
    classes.into_iter().find(|class| class.name == name).ok_or(StoreError::Unknown)
}

impl StorageClasses {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// All storage classes by name, for an operator.
    pub async fn list_classes(&self, caller: &Caller) -> Result<Vec<StorageClass>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        Ok(read_classes(&mut conn.tx()).await?)
    }

    /// The storage classes of an organization by name.
    pub async fn list_org_classes(
        &self,
        caller: &Caller,
        org: OrgId,
    ) -> Result<Vec<OrgStorageClass>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let names = store::volumes::classes::list_of_org(&mut conn.tx(), org).await?;
        Ok(names.into_iter().map(|name| OrgStorageClass { name }).collect())
    }

    /// Declares a storage class. A known class stays as it is.
    ///
    /// # Errors
    /// The name is invalid, or the portal has too many classes.
    pub async fn declare_class(&self, caller: &Caller, name: &str) -> Result<StorageClass, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        if !is_name(name) {
            let detail =
                "A name has up to 63 lower-case letters, digits and - and begins with a letter or a digit.";
            return Err(Problem::invalid_field("/class", detail));
        }
        let row = StoredClass {
            name: name.to_owned(),
            created_by: caller.user.name.clone(),
            created_at: self.context.now(),
        };
        let event =
            self.context.audit_event(caller, "storage_class.declared", row.name.clone(), String::new());
        let declared = self.context.db.try_write(move |tx| {
            let (row, event) = (row.clone(), event.clone());
            async move {
                let known = store::volumes::classes::list(tx).await?;
                if known.iter().all(|known| known.name != row.name) {
                    if known.len() >= MAX_CLASSES {
                        let detail = format!(
                            "A portal has at most {MAX_CLASSES} storage classes. Delete an unused one."
                        );
                        return Err(limit(detail).into());
                    }
                    store::volumes::classes::insert(tx, &row).await?;
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                Ok(read_class(tx, &row.name).await?)
            }
            .boxed()
        });
        Ok(declared.await?)
    }

    /// Deletes a storage class with its grants. The files on the nodes stay.
    ///
    /// # Errors
    /// The class does not exist, or has volumes.
    pub async fn delete_class(&self, caller: &Caller, name: &str) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let name = name.to_owned();
        let event = self.context.audit_event(caller, "storage_class.deleted", name.clone(), String::new());
        let deleted = self.context.db.try_write(move |tx| {
            let (name, event) = (name.clone(), event.clone());
            async move {
                if store::volumes::classes::find(tx, &name).await?.is_none() {
                    return Err(Problem::not_found().into());
                }
                let volumes = store::volumes::classes::count_volumes(tx, &name, None).await?;
                if volumes > 0 {
                    let detail = format!(
                        "Volumes of organizations have the storage class {name}: {volumes}. Nothing was deleted. Ask their owners to delete them."
                    );
                    return Err(in_use(detail).into());
                }
                store::volumes::classes::delete(tx, &name).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        Ok(deleted.await?)
    }

    /// Grants a storage class to an organization: its owners may create volumes of the class.
    ///
    /// # Errors
    /// The class or the organization does not exist, or the class has too many organizations.
    pub async fn grant_class(
        &self,
        caller: &Caller,
        name: &str,
        org: OrgId,
    ) -> Result<StorageClass, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let name = name.to_owned();
        let event = self.context.audit_event(caller, "storage_class.granted", name.clone(), String::new());
        let granted = self.context.db.try_write(move |tx| {
            let (name, event) = (name.clone(), event.clone());
            async move {
                let known_org = store::dedicated::find_own_only(tx, org).await?.is_some();
                if !known_org || store::volumes::classes::find(tx, &name).await?.is_none() {
                    return Err(Problem::not_found().into());
                }
                if store::volumes::classes::count_grants(tx, &name).await? >= MAX_GRANTS
                    && !store::volumes::classes::is_granted(tx, &name, org).await?
                {
                    let detail = format!("A storage class has at most {MAX_GRANTS} organizations.");
                    return Err(limit(detail).into());
                }
                if store::volumes::classes::grant(tx, &name, org).await? {
                    store::volumes::classes::assign_group(tx, org).await?;
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(read_class(tx, &name).await?)
            }
            .boxed()
        });
        Ok(granted.await?)
    }

    /// Takes a storage class from an organization.
    ///
    /// # Errors
    /// The organization does not have the class, or has volumes of it.
    pub async fn revoke_class(
        &self,
        caller: &Caller,
        name: &str,
        org: OrgId,
    ) -> Result<StorageClass, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        let name = name.to_owned();
        let event = self.context.audit_event(caller, "storage_class.revoked", name.clone(), String::new());
        let revoked = self.context.db.try_write(move |tx| {
            let (name, event) = (name.clone(), event.clone());
            async move {
                let volumes = store::volumes::classes::count_volumes(tx, &name, Some(org)).await?;
                if volumes > 0 {
                    let detail = format!(
                        "The organization has volumes of the storage class {name}: {volumes}. Nothing was changed. Ask its owners to delete them."
                    );
                    return Err(in_use(detail).into());
                }
                if !store::volumes::classes::revoke(tx, &name, org).await? {
                    return Err(Problem::not_found().into());
                }
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(read_class(tx, &name).await?)
            }
            .boxed()
        });
        Ok(revoked.await?)
    }
}
