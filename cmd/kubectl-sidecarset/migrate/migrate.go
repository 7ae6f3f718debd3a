// Package migrate says what changes for SidecarSets of OpenKruise with this operator, and how to
// move. It judges by the rules of the operator's webhook. It has no client.
package migrate

import (
	_ "embed"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/internal/validation"
)

// To has the steps from OpenKruise to this operator, and Back those back, as docs/migration.md
// explains them.
var (
	//go:embed to.txt
	To string
	//go:embed back.txt
	Back string
)

// Note is one thing to decide before the move. If Refused is true, the operator refuses the
// object; it continues using one that is stored already.
type Note struct {
	Object, Text string
	Refused      bool
}

// Namespace is the one that OpenKruise runs in.
const Namespace = "kruise-system"

// SidecarSets judges the SidecarSets by the rules of the webhook, but for conflicts between them,
// which OpenKruise refuses as well. whitelist is the content of OpenKruise's ConfigMap.
func SidecarSets(parts *clusterview.Parts, whitelist string) (notes []Note) {
	sets := map[string]*hub.SidecarSet{}
	for _, object := range parts.SidecarSets {
		hub.Object(object).Default()
		name := hub.NameOf(object)
		if set, err := hub.Object(object).Hub(); err != nil {
			notes = append(notes, Note{"SidecarSet " + name, strings.TrimPrefix(err.Error(), hub.Object(object).Describe()+": "), true})
		} else {
			sets[name] = set
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		set, object := sets[name], "SidecarSet "+name
		env := validation.Environment{
			Whitelist: validation.Whitelist{Namespace: Namespace, Content: whitelist}, Recorded: true, Object: set.Object, ExcludedNamespaces: []string{"kube-system"},
		}
		if base := sets[appsv1beta1.BaseOfCanary(set.Set.Annotations)]; base != nil {
			env.Base = &base.Set.ObjectMeta
		}
		errs := validation.Bounds(set.Set, nil, set.Object, nil)
		if len(errs) == 0 {
			errs = validation.Create(set.Set, env)
			for _, warning := range validation.Warnings(set.Set, env) {
				notes = append(notes, Note{object, warning, false})
			}
		}
		for _, err := range errs {
			notes = append(notes, Note{object, err.Error(), true})
		}
		if set.Set.Spec.InjectionStrategy.Revision != nil {
			notes = append(notes, Note{object, "injects a recorded revision, so the operator needs --revision-namespace=" + Namespace, false})
		}
	}
	return notes
}

// Namespaces are those that will be injected from now on: OpenKruise leaves out Namespaces with
// the label control-plane.
func Namespaces(parts *clusterview.Parts) (notes []Note) {
	w := clusterview.New(*parts)
	by := map[string][]string{}
	for _, compiled := range w.Snapshot.SidecarSets() {
		for name := range w.Snapshot.NamespacesWith(compiled.NamespaceSelector) {
			if parts.Namespaces[name].Has("control-plane") && !w.Excluded.Namespace(name) {
				by[name] = append(by[name], compiled.Name())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		notes = append(notes, Note{"Namespace " + name, "has the label control-plane: OpenKruise does not inject there, and this operator does (" + strings.Join(by[name], ", ") + "); exclude it with --excluded-namespaces, or change the selectors", false})
	}
	return notes
}

// gates are the feature gates of OpenKruise that matter for SidecarSets.
var gates = map[string]string{
	"SidecarTerminator":                         "has no counterpart: make sidecars of Jobs native sidecars",
	"SidecarSetPatchPodMetadataDefaultsAllowed": "is the flag --patch-pod-metadata-allowed here",
	"EnableSortSidecarContainerByName":          "has no counterpart: containers of one SidecarSet keep the order of its spec",
	"PodWebhook":                                "has no counterpart: pause SidecarSets (injectionStrategy.paused) instead",
}

// Gates says what becomes of the feature gates in the command lines of OpenKruise.
func Gates(deployments []appsv1.Deployment) (notes []Note) {
	for i := range deployments {
		for _, c := range deployments[i].Spec.Template.Spec.Containers {
			for _, arg := range c.Args {
				list, _ := strings.CutPrefix(strings.TrimLeft(arg, "-"), "feature-gates=")
				for gate := range strings.SplitSeq(list, ",") {
					if name, _, _ := strings.Cut(gate, "="); gates[name] != "" {
						notes = append(notes, Note{"Deployment " + deployments[i].Name, "feature gate " + gate + " " + gates[name], false})
					}
				}
			}
		}
	}
	return notes
}

// Between names the webhooks for Pods that API servers call after OpenKruise's and before this
// operator's: they see the sidecars today, and will not. The configurations are in name order.
func Between(configurations []admissionregistrationv1.MutatingWebhookConfiguration) (notes []Note) {
	after := false
	for i := range configurations {
		c := &configurations[i]
		if injectors.Find(c) != nil {
			after = true
		} else if after && c.Name < podwebhook.ConfigurationName(0) && !strings.HasPrefix(c.Name, "sidecarset-") && injectors.CoversPods(c) {
			notes = append(notes, Note{"MutatingWebhookConfiguration " + c.Name, "is called after OpenKruise and before this operator: it sees Pods without the sidecars from now on, unless it has reinvocationPolicy: IfNeeded", false})
		}
	}
	return notes
}
