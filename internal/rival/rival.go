// Package rival recognises another program that injects SidecarSets into Pods:
// OpenKruise, or a second operator of this kind in another namespace. It knows
// what their webhook configurations look like, and which Pods are then theirs.
// It refuses to know how configurations are watched.
//
// A configuration that stands counts as live: whether its server answers is not
// ours to find out, and one whose server is gone should be deleted anyway.
package rival

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/podstate"
)

// The paths of the reference: its Pod webhook, and that for SidecarSets, which is
// ours as well.
const (
	pathReferencePods = "/mutate-pod"
	pathSidecarSets   = "/mutate-apps-kruise-io-sidecarset"
)

const (
	// domain ends the names of our entries.
	domain = ".sidecarset.io"
	// firstOfOurs is not after the name of any of our configurations.
	firstOfOurs = "sidecarset-"
)

// Injector is another program that injects SidecarSets. It is not changed once
// it is made. A nil one is none.
type Injector struct {
	// Configuration is the name of its MutatingWebhookConfiguration.
	Configuration string
	// Entry is the webhook in it that Pods are sent to, and Server who answers.
	Entry, Server string
	// OfOurKind says that it is another operator like this one.
	OfOurKind bool
}

// Find returns the injector that a configuration calls; nil if it calls none
// but the operator in our namespace.
func Find(c *admissionregistrationv1.MutatingWebhookConfiguration, ourNamespace string) *Injector {
	aboutSidecarSets := slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return pathOf(&w) == pathSidecarSets || slices.ContainsFunc(w.Rules, namesSidecarSets)
	})
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		if !slices.ContainsFunc(w.Rules, coversPods) {
			continue
		}
		switch path := pathOf(w); {
		case path == pathReferencePods && aboutSidecarSets:
			return &Injector{Configuration: c.Name, Entry: w.Name, Server: serverOf(w)}
		case strings.HasSuffix(w.Name, domain) && (path == entryplan.PathPods || path == entryplan.PathPodsFresh):
			// By URL nobody can tell whose it is; that is for trying out.
			if service := w.ClientConfig.Service; service != nil && service.Namespace != ourNamespace {
				return &Injector{Configuration: c.Name, Entry: w.Name, Server: serverOf(w), OfOurKind: true}
			}
		}
	}
	return nil
}

// CallsUs says whether a configuration has new Pods sent to the operator in our
// namespace.
func CallsUs(c *admissionregistrationv1.MutatingWebhookConfiguration, ourNamespace string) bool {
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		path := pathOf(&w)
		service := w.ClientConfig.Service
		return (path == entryplan.PathPods || path == entryplan.PathPodsFresh) && slices.ContainsFunc(w.Rules, coversPods) &&
			(service == nil || service.Namespace == ourNamespace)
	})
}

// HasBarrier says whether a configuration has the barrier entry of static mode call
// the operator in our namespace.
func HasBarrier(c *admissionregistrationv1.MutatingWebhookConfiguration, ourNamespace string) bool {
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		configuration, _, ok := entryplan.ParseBarrierPath(pathOf(&w))
		service := w.ClientConfig.Service
		return ok && configuration == entryplan.StaticBarrier && (service == nil || service.Namespace == ourNamespace)
	})
}

func coversPods(rule admissionregistrationv1.RuleWithOperations) bool {
	return (slices.Contains(rule.Operations, admissionregistrationv1.Create) || slices.Contains(rule.Operations, admissionregistrationv1.OperationAll)) &&
		slices.ContainsFunc(rule.APIGroups, func(group string) bool { return group == "" || group == "*" }) &&
		slices.ContainsFunc(rule.Resources, func(resource string) bool { return resource == "pods" || resource == "*" || resource == "*/*" })
}

// namesSidecarSets leaves rules for everything out: those are about policies.
func namesSidecarSets(rule admissionregistrationv1.RuleWithOperations) bool {
	return slices.Contains(rule.APIGroups, appsv1beta1.Resource.Group) && slices.Contains(rule.Resources, appsv1beta1.Resource.Resource)
}

func pathOf(w *admissionregistrationv1.MutatingWebhook) string {
	if service := w.ClientConfig.Service; service != nil {
		if service.Path == nil {
			return "/"
		}
		return *service.Path
	}
	if w.ClientConfig.URL == nil {
		return ""
	}
	parsed, err := url.Parse(*w.ClientConfig.URL)
	if err != nil {
		return ""
	}
	return parsed.Path
}

func serverOf(w *admissionregistrationv1.MutatingWebhook) string {
	if service := w.ClientConfig.Service; service != nil {
		return "Service " + service.Namespace + "/" + service.Name
	}
	parsed, err := url.Parse(*w.ClientConfig.URL)
	if err != nil {
		return "a URL"
	}
	return parsed.Host
}

// ClaimsEntries says whether it keeps webhook entries under the names of ours, so
// that two would undo each other's work without end.
func (i *Injector) ClaimsEntries() bool { return i != nil && i.OfOurKind }

// Message says who else injects, what that means, and what to do.
func (i *Injector) Message() string {
	switch {
	case i == nil:
		return ""
	case i.OfOurKind:
		return fmt.Sprintf("Another SidecarSet operator injects as well: MutatingWebhookConfiguration %s, entry %s, calls %s. "+
			"Pods that it injected are left as they are. Uninstall one of the two.", i.Configuration, i.Entry, i.Server)
	case i.calledFirst():
		return fmt.Sprintf("OpenKruise injects as well: MutatingWebhookConfiguration %s, entry %s, calls %s. "+
			"Pods that it injected are left as they are. Delete that configuration, or switch OpenKruise's Pod webhook off, and this operator takes over with the next Pod.",
			i.Configuration, i.Entry, i.Server)
	}
	return fmt.Sprintf("OpenKruise injects as well: MutatingWebhookConfiguration %s, entry %s, calls %s. "+
		"It is called after this operator, which therefore injects nothing. Delete that configuration, or switch OpenKruise's Pod webhook off.",
		i.Configuration, i.Entry, i.Server)
}

// calledFirst says whether API servers call it before us: they go by the names
// of configurations.
func (i *Injector) calledFirst() bool { return i.Configuration < firstOfOurs || i.OfOurKind }

// Owns says whether a Pod with these annotations that some SidecarSets select is
// to be left to the injector: it has recorded one of them in the Pod, or it will
// be called after us. A Pod that it was not called for, or did not inject, is
// ours, so that nothing is missed on the day when it is removed.
func (i *Injector) Owns(annotations map[string]string, sidecarSets func(yield func(name string) bool)) bool {
	if i == nil {
		return false
	}
	if !i.calledFirst() {
		return true
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
