package doctor

import (
	"context"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

const (
	applyCRD = "apply the CRD of the operator again: kubectl apply --server-side --force-conflicts -k config/crd"
	pageCRD  = "docs/migration.md#what-not-to-run-at-the-same-time"
	crdName  = "CustomResourceDefinition " + definition
)

// lookAtCRD finds versions that are not served, and conversions that another program answers.
func (f *facts) lookAtCRD(_ context.Context, r *Result) {
	if f.crd.Name == "" {
		r.add(Error, crdName, "docs/install.md#in-five-steps", "install the operator, or name its cluster with --context", "is not installed, so there are no SidecarSets")
		return
	}
	for _, c := range f.crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status != apiextensionsv1.ConditionTrue || c.Type == apiextensionsv1.NonStructuralSchema && c.Status == apiextensionsv1.ConditionTrue {
			r.add(Error, crdName, pageCRD, applyCRD, "%s is %s: %s", c.Type, c.Status, c.Message)
		}
	}
	hub, old := appsv1beta1.GroupVersion.Version, appsv1alpha1.GroupVersion.Version
	served := map[string]bool{}
	for i := range f.crd.Spec.Versions {
		version := &f.crd.Spec.Versions[i]
		served[version.Name] = version.Served
		if !version.Storage {
			continue
		}
		if version.Name != hub {
			r.add(Error, crdName, pageCRD, applyCRD, "stores %s; the operator stores %s", version.Name, hub)
		}
		if schema := version.Schema; schema == nil || schema.OpenAPIV3Schema == nil || schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"].Type == "" {
			r.add(Error, crdName, pageCRD, applyCRD, "has no status.conditions: it is another program's, and API servers drop what the operator writes into the status")
		}
	}
	for _, version := range []string{hub, old} {
		if !served[version] {
			r.add(Error, crdName, pageCRD, applyCRD, "does not serve %s", version)
		}
	}
	if slices.Contains(f.crd.Status.StoredVersions, old) {
		r.add(Warning, crdName, "docs/troubleshooting.md#failed-calling-webhook", "write each SidecarSet once (kubectl get sidecarsets -o yaml | kubectl replace -f -), then remove "+old+" from status.storedVersions of the CRD",
			"some SidecarSets may be stored as %s: they can be read only while a replica runs", old)
	}
	switch config := f.conversionConfig(); {
	case config == nil:
		r.add(Error, crdName, pageCRD, applyCRD, "has no conversion webhook: requests for the version that is not stored return wrong objects")
	case !f.calls(config):
		by := ""
		if config.Service != nil {
			by = "Service " + config.Service.Namespace + "/" + config.Service.Name
		} else if config.URL != nil {
			by = *config.URL
		}
		r.add(Error, crdName, pageCRD, "take that program away or switch it off, then "+applyCRD, "has %s convert SidecarSets, not the operator: when that program goes, requests for the other version fail", by)
	}
}

// conversionConfig is the client configuration of the CRD's conversion webhook, in the form that
// admission webhooks have; nil if there is none.
func (f *facts) conversionConfig() *admissionregistrationv1.WebhookClientConfig {
	if c := f.crd.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil {
		config := c.Webhook.ClientConfig
		return &admissionregistrationv1.WebhookClientConfig{URL: config.URL, Service: (*admissionregistrationv1.ServiceReference)(config.Service), CABundle: config.CABundle}
	}
	return nil
}
