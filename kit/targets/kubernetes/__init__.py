"""The Kubernetes target: manifests in one namespace, by kubectl."""
