package validation

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// mostRequired is how many required SidecarSets there may be without a warning. API servers judge
// each Pod of the cluster by each of them.
const mostRequired = 20

func isRequired(set *appsv1beta1.SidecarSet) bool {
	_, ok := set.Labels[appsv1beta1.LabelRequired]
	return ok
}

func validateRequired(set *appsv1beta1.SidecarSet, metadata place) {
	if isRequired(set) {
		validateChoice(set.Labels[appsv1beta1.LabelRequired], metadata.Child("labels").Key(appsv1beta1.LabelRequired), "true", "warn")
	}
}

// required warns if API servers refuse Pods of a required SidecarSet although they were injected,
// or do not refuse Pods that the user probably means. stored has all SidecarSets.
func (w *warner) required(set *appsv1beta1.SidecarSet, stored []*appsv1beta1.SidecarSet) {
	label := field.NewPath("metadata", "labels").Key(appsv1beta1.LabelRequired)
	required := 1
	for _, other := range stored {
		if other.Name == set.Name {
			continue
		}
		if isRequired(other) {
			required++
		}
		switch other.Name {
		case appsv1beta1.BaseOfCanary(set.Annotations):
			if names := missing(other, set); isRequired(other) && names != "" {
				w.add(field.NewPath("metadata", "annotations").Key(appsv1beta1.AnnotationBase), "%s is required, and API servers refuse Pods of this canary, which lack %s; give the canary containers of these names", other.Name, names)
			}
			continue
		}
		if names := missing(set, other); appsv1beta1.BaseOfCanary(other.Annotations) == set.Name && isRequired(set) && names != "" {
			w.add(label, "API servers refuse Pods of the canary %s, which lack %s; give the canary containers of these names", other.Name, names)
		}
	}
	if !isRequired(set) {
		return
	}
	if required > mostRequired {
		w.add(label, "%d SidecarSets have it, and API servers judge every Pod of the cluster by each of them; remove it from some", required)
	}
	if canBeLeft(set.Spec.Selector) {
		w.add(field.NewPath("spec", "selector"), "a user who creates a Pod can leave it by other labels; if that matters, use matchExpressions: [{key: %s, operator: DoesNotExist}] alone, and name namespaces by kubernetes.io/metadata.name in namespaceSelector", appsv1beta1.LabelNone)
	}
}

// missing are the names of containers of a SidecarSet that Pods of its canary lack, as the policy
// of config/required looks for them.
func missing(base, canary *appsv1beta1.SidecarSet) string {
	type name struct {
		name string
		init bool
	}
	has := sets.New[name]()
	for c := range containersOf(&canary.Spec) {
		for _, inPod := range c.namesInPod() {
			has.Insert(name{inPod, c.init})
		}
	}
	var names []string
	for c := range containersOf(&base.Spec) {
		if working, _ := appsv1beta1.HotUpgradeNames(c.Name); !has.HasAny(name{c.Name, c.init}, name{working, c.init}) {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ")
}

// canBeLeft reports whether a Pod can have labels by which a selector does not select it, and which the
// policy of config/required does not overlook.
func canBeLeft(selector *metav1.LabelSelector) bool {
	if selector == nil || len(selector.MatchLabels) > 0 {
		return selector != nil
	}
	for _, e := range selector.MatchExpressions {
		if e.Key != appsv1beta1.LabelNone || e.Operator != metav1.LabelSelectorOpDoesNotExist {
			return true
		}
	}
	return false
}
