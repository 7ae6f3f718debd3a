// Package injectors recognises another injector, that is another program that injects SidecarSets
// into Pods: OpenKruise. It knows what its webhook configuration looks like, and which Pods the
// operator leaves to it. It does not know how configurations are watched.
//
// A configuration that is present counts as live. The operator does not find out whether
// its server answers: if the server is gone, an administrator should delete the
// configuration.
package injectors

import (
	"fmt"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/podwebhook"
)

// The paths of OpenKruise's webhooks for Pods and for SidecarSets. The operator has the
// same path for SidecarSets.
const (
	pathReferencePods = "/mutate-pod"
	pathSidecarSets   = "/mutate-apps-kruise-io-sidecarset"
)

// Injector is another program that injects SidecarSets. It is immutable. A nil one means
// that there is none.
type Injector struct {
	// Configuration is the name of its MutatingWebhookConfiguration.
	Configuration string
	// Webhook is the name of the webhook in it that API servers send Pods to, and Server
	// where they send them.
	Webhook, Server string
}

// Find returns the injector that a configuration calls; nil if it calls none.
func Find(c *admissionregistrationv1.MutatingWebhookConfiguration) *Injector {
	aboutSidecarSets := slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		_, path := calls(&w)
		return path == pathSidecarSets || slices.ContainsFunc(w.Rules, namesSidecarSets)
	})
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		if server, path := calls(w); path == pathReferencePods && aboutSidecarSets && slices.ContainsFunc(w.Rules, coversPods) {
			return &Injector{Configuration: c.Name, Webhook: w.Name, Server: server}
		}
	}
	return nil
}

// CallsUs reports whether API servers send new Pods to the operator in ourNamespace by a
// configuration.
func CallsUs(c *admissionregistrationv1.MutatingWebhookConfiguration, ourNamespace string) bool {
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		_, path := calls(&w)
		return isPodPath(path) && slices.ContainsFunc(w.Rules, coversPods) && isOurs(&w, ourNamespace)
	})
}

// HasProbe reports whether a configuration has the probe webhook of static mode, and that
// webhook calls the operator in ourNamespace.
func HasProbe(c *admissionregistrationv1.MutatingWebhookConfiguration, ourNamespace string) bool {
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		_, path := calls(&w)
		label, ok := podwebhook.ParseProbePath(path)
		return ok && label == podwebhook.LabelStaticProbe && isOurs(&w, ourNamespace)
	})
}

func coversPods(rule admissionregistrationv1.RuleWithOperations) bool {
	return (slices.Contains(rule.Operations, admissionregistrationv1.Create) || slices.Contains(rule.Operations, admissionregistrationv1.OperationAll)) &&
		slices.ContainsFunc(rule.APIGroups, func(group string) bool { return group == "" || group == "*" }) &&
		slices.ContainsFunc(rule.Resources, func(resource string) bool { return resource == "pods" || resource == "*" || resource == "*/*" })
}

// namesSidecarSets ignores rules for all resources: policy engines have them.
func namesSidecarSets(rule admissionregistrationv1.RuleWithOperations) bool {
	return slices.Contains(rule.APIGroups, appsv1beta1.Resource.Group) && slices.Contains(rule.Resources, appsv1beta1.Resource.Resource)
}

// calls returns the server that a webhook calls, as messages name it, and the path there.
func calls(w *admissionregistrationv1.MutatingWebhook) (server, path string) {
	if service := w.ClientConfig.Service; service != nil {
		path = "/"
		if service.Path != nil {
			path = *service.Path
		}
		return "Service " + service.Namespace + "/" + service.Name, path
	}
	if w.ClientConfig.URL != nil {
		if parsed, err := url.Parse(*w.ClientConfig.URL); err == nil {
			return parsed.Host, parsed.Path
		}
	}
	return "", ""
}

// isOurs reports whether a webhook may call the operator in ourNamespace. A URL does not
// tell which operator it leads to. URLs are for development.
func isOurs(w *admissionregistrationv1.MutatingWebhook, ourNamespace string) bool {
	return w.ClientConfig.Service == nil || w.ClientConfig.Service.Namespace == ourNamespace
}

// isPodPath reports whether the operator answers reviews of Pods at a path.
func isPodPath(path string) bool {
	_, _, ofShard := podwebhook.ParsePodsPath(path)
	return ofShard || path == podwebhook.PathPods
}

// Message names the other injector, and says what that means and what to do.
func (i *Injector) Message() string {
	if i == nil {
		return ""
	}
	return fmt.Sprintf("OpenKruise injects as well: MutatingWebhookConfiguration %s, webhook %s, calls %s. Pods that it injected are left as they are. "+
		"Delete that configuration, or switch OpenKruise's Pod webhook off. Then this operator injects new Pods.", i.Configuration, i.Webhook, i.Server)
}

// Owns reports whether the operator leaves a Pod with these annotations, which some
// SidecarSets select, to the injector, which has recorded one of them in the Pod: API servers call
// OpenKruise's configuration first, by its name. The operator injects other Pods, so that it
// misses none when the injector is removed.
func (i *Injector) Owns(annotations map[string]string, sidecarSets func(yield func(name string) bool)) bool {
	if i == nil {
		return false
	}
	hashes := podstate.ParseHashes(annotations[appsv1beta1.AnnotationHash])
	injected := podstate.ParseInjectedList(annotations[appsv1beta1.AnnotationInjectedList])
	for name := range sidecarSets {
		if hashes.Has(name) || slices.Contains(injected, name) {
			return true
		}
	}
	return false
}

// CoversPods reports whether API servers send new Pods to some webhook of a configuration.
func CoversPods(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return slices.ContainsFunc(w.Rules, coversPods) })
}
