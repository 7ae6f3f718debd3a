// Package injectors recognises another injector, that is another program that injects SidecarSets
// into Pods: OpenKruise, or a second operator of this kind in another namespace. It knows what
// their webhook configurations look like, and which Pods the operator leaves to them. It does
// not know how configurations are watched.
//
// A configuration that is present counts as live. The operator does not find out whether
// its server answers: if the server is gone, an administrator should delete the
// configuration.
package injectors

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/podstate"
)

// The paths of OpenKruise's webhooks for Pods and for SidecarSets. The operator has the
// same path for SidecarSets.
const (
	pathReferencePods = "/mutate-pod"
	pathSidecarSets   = "/mutate-apps-kruise-io-sidecarset"
)

const (
	// domain ends the names of the operator's entries.
	domain = ".sidecarset.io"
	// firstOfOurs sorts before the names of all configurations of the operator.
	firstOfOurs = "sidecarset-"
)

// Injector is another program that injects SidecarSets. It is immutable. A nil one means
// that there is none.
type Injector struct {
	// Configuration is the name of its MutatingWebhookConfiguration.
	Configuration string
	// Entry is the name of the webhook in it that API servers send Pods to, and Server
	// where they send them.
	Entry, Server string
	// OfOurKind says that it is another operator like this one.
	OfOurKind bool
}

// Find returns the injector that a configuration calls; nil if it calls none, or the
// operator in ourNamespace.
func Find(c *admissionregistrationv1.MutatingWebhookConfiguration, ourNamespace string) *Injector {
	aboutSidecarSets := slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		_, path := calls(&w)
		return path == pathSidecarSets || slices.ContainsFunc(w.Rules, namesSidecarSets)
	})
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		if !slices.ContainsFunc(w.Rules, coversPods) {
			continue
		}
		switch server, path := calls(w); {
		case path == pathReferencePods && aboutSidecarSets:
			return &Injector{Configuration: c.Name, Entry: w.Name, Server: server}
		case strings.HasSuffix(w.Name, domain) && isPodPath(path) && !isOurs(w, ourNamespace):
			return &Injector{Configuration: c.Name, Entry: w.Name, Server: server, OfOurKind: true}
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

// HasBarrier reports whether a configuration has the barrier entry of static mode, and that
// entry calls the operator in ourNamespace.
func HasBarrier(c *admissionregistrationv1.MutatingWebhookConfiguration, ourNamespace string) bool {
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		_, path := calls(&w)
		label, ok := entry.ParseBarrierPath(path)
		return ok && label == entry.LabelStaticBarrier && isOurs(&w, ourNamespace)
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

// calls returns the server that an entry calls, as messages name it, and the path there.
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

// isOurs reports whether an entry may call the operator in ourNamespace. A URL does not
// tell which operator it leads to. URLs are for development.
func isOurs(w *admissionregistrationv1.MutatingWebhook, ourNamespace string) bool {
	return w.ClientConfig.Service == nil || w.ClientConfig.Service.Namespace == ourNamespace
}

// isPodPath reports whether the operator answers reviews of Pods at a path.
func isPodPath(path string) bool {
	_, _, ofSlot := entry.ParsePodsPath(path)
	return ofSlot || path == entry.PathPods
}

// ClaimsEntries reports whether the injector keeps webhook entries under the same names
// as this operator: then each would undo what the other writes.
func (i *Injector) ClaimsEntries() bool { return i != nil && i.OfOurKind }

// Message names the other injector, and says what that means and what to do.
func (i *Injector) Message() string {
	if i == nil {
		return ""
	}
	who, then := "OpenKruise", "It is called after this operator, which therefore injects nothing. Delete that configuration, or switch OpenKruise's Pod webhook off."
	switch {
	case i.OfOurKind:
		who, then = "Another SidecarSet operator", "Pods that it injected are left as they are. Uninstall one of the two."
	case i.calledFirst():
		then = "Pods that it injected are left as they are. Delete that configuration, or switch OpenKruise's Pod webhook off. Then this operator injects new Pods."
	}
	return fmt.Sprintf("%s injects as well: MutatingWebhookConfiguration %s, entry %s, calls %s. %s", who, i.Configuration, i.Entry, i.Server, then)
}

// calledFirst reports whether API servers call the injector before this operator: they call
// configurations in the order of their names.
func (i *Injector) calledFirst() bool { return i.Configuration < firstOfOurs || i.OfOurKind }

// Owns reports whether the operator leaves a Pod with these annotations, which some
// SidecarSets select, to the injector: the injector has recorded one of them in the Pod,
// or API servers call it after the operator. The operator injects other Pods, so that it
// misses none when the injector is removed.
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

// CoversPods reports whether API servers send new Pods to some webhook of a configuration.
func CoversPods(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return slices.ContainsFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return slices.ContainsFunc(w.Rules, coversPods) })
}
