package doctor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/injectors"
)

const (
	pageEntries = "docs/injection.md#if-a-call-fails"
	pageReady   = "docs/troubleshooting.md#ready-is-false"
	applySlots  = "kubectl apply --server-side -f dist/install.yaml -l " + entry.LabelConfiguration
	leaderLog   = "the leader repairs it within seconds; if it stays, look at the leader's log"
)

// lookAtWebhooks finds out whether API servers call the operator for SidecarSets.
func (f *facts) lookAtWebhooks(_ context.Context, r *Result) {
	var mutating, validating bool
	for i := range f.mutating.Items {
		mutating = mutating || slices.ContainsFunc(f.mutating.Items[i].Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
			return f.asks(&w.ClientConfig, w.Rules)
		})
	}
	for i := range f.validating.Items {
		validating = validating || slices.ContainsFunc(f.validating.Items[i].Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
			return f.asks(&w.ClientConfig, w.Rules)
		})
	}
	if !mutating {
		r.add(Error, "MutatingWebhookConfiguration "+mutatingConfiguration, "docs/install.md#in-five-steps", applyAgain,
			"is missing, or does not call the operator for SidecarSets: they are stored without defaults and without the hashes of their content")
	}
	if !validating {
		r.add(Error, "ValidatingWebhookConfiguration "+validatingConfiguration, "docs/install.md#in-five-steps", applyAgain,
			"is missing, or does not call the operator for SidecarSets: they are stored unchecked, whoever writes them")
	}
}

// asks reports whether a webhook of the operator is called for SidecarSets.
func (f *facts) asks(config *admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations) bool {
	return f.host(config) != "" && slices.ContainsFunc(rules, func(rule admissionregistrationv1.RuleWithOperations) bool {
		return slices.Contains(rule.Resources, "sidecarsets")
	})
}

// lookAtEntries compares the slots with what the SidecarSets need.
func (f *facts) lookAtEntries(_ context.Context, r *Result) {
	if f.static() {
		if !slices.ContainsFunc(f.mutating.Items, func(c admissionregistrationv1.MutatingWebhookConfiguration) bool {
			return injectors.CallsUs(&c, f.namespace)
		}) {
			r.add(Error, "MutatingWebhookConfiguration "+mutatingConfiguration, "docs/install.md#static-entries", "kubectl apply -k config/overlays/static",
				"has no entry for Pods, and with --pod-webhook=static the operator writes none: no Pod is injected")
		}
		return
	}
	var needed []entry.Entry
	for _, object := range f.parts.SidecarSets {
		if set, err := hub.Object(object).Hub(); err == nil { // the check of the SidecarSets reports the others
			if e, err := entry.Of(set.Set); err == nil { // otherwise Ready says why
				needed = append(needed, e)
			}
		}
	}
	for i, wanted := range entry.Combine(needed) {
		name := entry.ConfigurationName(i)
		object := "MutatingWebhookConfiguration " + name
		at := slices.IndexFunc(f.mutating.Items, func(c admissionregistrationv1.MutatingWebhookConfiguration) bool { return c.Name == name })
		if at < 0 {
			r.add(Error, object, pageEntries, applySlots, "is missing: API servers create the Pods of these SidecarSets without sidecars: %s", cmp.Or(brief(setsOf(wanted)), "none today"))
			continue
		}
		slot, err := entry.Parse(&f.mutating.Items[at])
		if err != nil {
			r.add(Error, object, "docs/upgrade.md#upgrade-and-rollback", "use the plugin and the operator of one version; if they are, "+applySlots, "%v", err)
			continue
		}
		f.lookAtSlot(slot, wanted, r)
	}
}

func (f *facts) lookAtSlot(slot *entry.Slot, wanted []entry.Entry, r *Result) {
	settings := &entry.Settings{
		Namespace: f.namespace, Ownerless: true, ExcludedNamespaces: f.excluded(), URL: f.url,
		Service:      admissionregistrationv1.ServiceReference{Namespace: f.namespace, Name: f.service()},
		Reinvocation: admissionregistrationv1.ReinvocationPolicyType(f.flag("pod-webhook-reinvocation", "")),
	}
	object := "MutatingWebhookConfiguration " + slot.Object.Name
	plan := slot.Reconcile(wanted, nil, nil, false, settings)
	by, repair := "", leaderLog // another program, and what to do about it
	if manager := entry.Editor(slot.Object); manager != "" {
		by, repair = " (by field manager "+manager+")", configure(manager)
	}
	for i := range wanted {
		e := &wanted[i]
		of := "SidecarSets " + brief(setsOf(wanted[i:i+1]))
		if refused := plan.Refused[e.Name]; refused != nil {
			r.add(Error, object, pageReady, "let SidecarSets share selectors, or shorten their selectors", "the entry of %s has no place: %v", of, refused)
		} else if !slices.Contains(slot.Entries(), e.Name) {
			r.add(Error, object, pageReady, repair, "the entry of %s is missing: it was removed%s, or the leader has not written it yet. API servers create their Pods without sidecars", of, by)
		} else if !slot.Has(e, settings) {
			r.add(Error, object, pageReady, repair, "entry %s is not what %s need: it was edited%s, or the leader has not written it yet", e.Name, of, by)
		} else if left := slot.Narrowing(e).By; left != "" {
			r.add(Warning, object, "docs/clouds.md", "this is what some clouds do; select other namespaces if you need sidecars there", "another program%s leaves out of the entry of %s: %s. Their Pods are created without sidecars", by, of, left)
		}
	}
	if len(plan.Foreign) > 0 {
		r.add(Error, object, pageEntries, repair, "has webhooks of another program%s: %s", by, brief(plan.Foreign))
	}
}

// configure says what to do about a program that edits webhook configurations.
func configure(manager string) string {
	is := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(strings.ToLower(manager), part) })
	}
	switch {
	case is("enforcer", "aks"):
		return "AKS leaves objects alone that have the label and the annotation admissions.enforcer/disabled: " + applySlots
	case is("gardener", "gardenlet"):
		return "keep kube-system in --excluded-namespaces, and sidecarset.io/timeout-seconds at 15 or less"
	case is("gke", "gmp"):
		return "GKE adds its own namespaces to namespaceSelectors, and cannot be asked not to"
	case is("argocd", "flux", "kustomize", "helm", "replace", "fleet"):
		return "have it apply the manifests, not replace them (Argo CD: remove the sync option Replace=true): the entries are not in the manifests"
	}
	return "configure that program to ignore objects with the label " + entry.LabelConfiguration
}

func setsOf(entries []entry.Entry) []string {
	names := map[string]bool{}
	for _, e := range entries {
		for _, need := range e.Needs {
			names[need.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (f *facts) lookAtInjectors(_ context.Context, r *Result) {
	for i := range f.mutating.Items {
		c := &f.mutating.Items[i]
		if other := injectors.Find(c, f.namespace); other != nil {
			r.add(Error, "MutatingWebhookConfiguration "+c.Name, "docs/security.md#another-injector", "uninstall one of the two; for OpenKruise, kubectl sidecarset migrate prints the steps", "%s", other.Message())
		}
	}
}
