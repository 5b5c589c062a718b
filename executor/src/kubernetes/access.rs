//! Rights of an executor, and the admission policy, as the API reports them. Nothing is changed.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;

use super::KubernetesConfig;
use super::api::{ApiFailure, answer};
use super::labels::ObjectOwner;
use super::store;

/// Rights of an executor: API group, resource, verbs, and whether they are needed only in the namespace of the records.
const RIGHTS: &[(&str, &str, &[&str], bool)] = &[
    ("", "pods", &["get", "list", "watch", "create", "delete"], false),
    ("", "persistentvolumeclaims", &["get", "list", "watch", "create", "delete"], false),
    ("storage.k8s.io", "storageclasses", &["get"], false),
    ("", "configmaps", &["get", "list", "watch", "create", "update", "delete"], true),
];

/// Rights of an executor with these credentials, and the protection from an executor that was replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessReport {
    /// Missing rights, as in `delete pods`.
    pub missing: Vec<String>,
    /// Whether the API states that the namespace of the records does not exist.
    pub is_without_namespace: bool,
    /// Whether the API refuses requests of an earlier epoch; an error states why that is not known.
    pub fence: Result<bool, String>,
}

/// Error of a check of the access.
#[derive(Debug, thiserror::Error)]
#[error("cannot check access to Kubernetes: {0}")]
pub struct AccessError(String);

impl KubernetesConfig {
    /// Asks the API for the rights of these credentials, and whether it refuses requests of an earlier epoch.
    pub async fn check_access(&self) -> Result<AccessReport, AccessError> {
        let client = self.client().await.map_err(|error| AccessError(error.to_string()))?;
        let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
        let mut missing = Vec::new();
        for (group, resource, verbs, is_local) in RIGHTS {
            for verb in *verbs {
                let attributes = ResourceAttributes {
                    group: Some((*group).to_owned()),
                    resource: Some((*resource).to_owned()),
                    verb: Some((*verb).to_owned()),
                    namespace: is_local.then(|| self.namespace.to_string()),
                    ..ResourceAttributes::default()
                };
                let spec = SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..Default::default()
                };
                let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
                let answered = answer(reviews.create(&PostParams::default(), &review)).await;
                let answered = answered.map_err(|failure| AccessError(failure.to_string()))?;
                if !answered.status.is_some_and(|status| status.allowed) {
                    let place =
                        if *is_local { format!(" in namespace {}", self.namespace) } else { String::new() };
                    missing.push(format!("{verb} {resource}{place}"));
                }
            }
        }
        let maps: Api<ConfigMap> = Api::namespaced(client, self.namespace.as_str());
        let owner = ObjectOwner { fleet: self.fleet.clone(), cluster: self.cluster.clone(), epoch: 0 };
        let fence = match store::probe_fence(&maps, &owner).await {
            Err(ApiFailure::Superseded(_)) => Ok(true),
            Ok(()) => Ok(false),
            Err(failure) => Err(failure),
        };
        let is_without_namespace = matches!(fence, Err(ApiFailure::NotFound(_)));
        let fence = fence.map_err(|failure| failure.to_string());
        Ok(AccessReport { missing, is_without_namespace, fence })
    }
}
