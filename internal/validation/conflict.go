package validation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// Conflicts are the problems of a SidecarSet that writes the same part of a Pod as another
// one.
type Conflicts struct {
	refused  field.ErrorList
	warned   []string
	refusing []string
}

// Texts returns the conflicts in the words in which a review names them, refused ones first.
func (c *Conflicts) Texts() []string {
	var texts []string
	for _, err := range c.refused {
		texts = append(texts, err.Error())
	}
	return append(texts, c.warned...)
}

// mostConflicts is the largest number of refused conflicts that are kept, and of warnings. An
// answer names fewer.
const mostConflicts = 1000

// Refusing returns the names of the other SidecarSets because of which this one is refused, in
// their order. The caller may want to know whether they still exist.
func (c *Conflicts) Refusing() []string { return c.refusing }

// FindConflicts compares set with every SidecarSet that may select one of the same Pods; set
// itself may be among others. A canary and its base never inject the same Pod, whichever of
// them is written. If another SidecarSet selects in fewer namespaces, a conflict with it is
// only a warning: the user who wrote it may have no rights in the other namespaces, and must not be able
// to keep set out of them.
func FindConflicts(set *appsv1beta1.SidecarSet, others []*appsv1beta1.SidecarSet) Conflicts {
	var found Conflicts
	if selectors.IsEmpty(set.Spec.Selector) {
		return found
	}
	pods := selectors.DemandsOf(set.Spec.Selector)
	namespaces := selectors.DemandsOf(cmp.Or(set.Spec.NamespaceSelector, &metav1.LabelSelector{}))
	for _, other := range others {
		if other.Name == set.Name || appsv1beta1.BaseOfCanary(set.Annotations) == other.Name || appsv1beta1.BaseOfCanary(other.Annotations) == set.Name {
			continue
		}
		mine, theirs := &set.Spec, &other.Spec
		if selectors.IsEmpty(theirs.Selector) || !pods.Overlap(theirs.Selector) {
			continue
		}
		both := mine.NamespaceSelector != nil && theirs.NamespaceSelector != nil
		if both && !namespaces.Overlap(theirs.NamespaceSelector) {
			continue
		}
		pair := pairing{mine: mine, theirs: theirs, name: set.Name, with: other.Name, found: &found}
		pair.refused = !unseenByReference(mine.Selector, theirs.Selector) && !(both && unseenByReference(mine.NamespaceSelector, theirs.NamespaceSelector))
		if namespaces.HasNarrower(theirs.NamespaceSelector) {
			pair.narrower, pair.refused = true, false
		}
		pair.containers()
		pair.volumes()
		pair.annotations()
	}
	return found
}

// unseenByReference reports whether OpenKruise takes two selectors for disjoint because one
// asks for a label, of any value, that the other one does not mention with a value. Manifests
// that OpenKruise admits must still apply, so a conflict that follows from such an overlap is
// a warning.
func unseenByReference(a, b *metav1.LabelSelector) bool {
	return a != nil && b != nil && (asksForUnmentioned(a, b) || asksForUnmentioned(b, a))
}

func asksForUnmentioned(asking, other *metav1.LabelSelector) bool {
	return slices.ContainsFunc(asking.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Operator == metav1.LabelSelectorOpExists && !mentions(other, e.Key)
	})
}

func mentions(selector *metav1.LabelSelector, key string) bool {
	if _, ok := selector.MatchLabels[key]; ok {
		return true
	}
	return slices.ContainsFunc(selector.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Key == key && (e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpExists)
	})
}

// pairing compares two SidecarSets that may select one Pod.
type pairing struct {
	mine, theirs *appsv1beta1.SidecarSetSpec
	name, with   string // of this and the other one
	refused      bool   // OpenKruise refuses such a conflict
	narrower     bool   // the other one selects in fewer namespaces
	found        *Conflicts
}

// kindOfConflict says in words what both SidecarSets write: what it is of the other one, and
// what happens to a Pod that both select.
type kindOfConflict struct{ is, consequence string }

// note keeps a conflict, unless mostConflicts are kept already.
func (p *pairing) note(path *field.Path, value string, kind kindOfConflict, refused bool) {
	kept := len(p.found.warned)
	if refused {
		kept = len(p.found.refused)
		if last := len(p.found.refusing) - 1; last < 0 || p.found.refusing[last] != p.with {
			p.found.refusing = append(p.found.refusing, p.with)
		}
	}
	if kept >= mostConflicts {
		return
	}
	detail := fmt.Sprintf("is %s SidecarSet %s, which may select the same Pods; rename it or keep their selectors apart", kind.is, p.with)
	if p.narrower {
		detail = fmt.Sprintf("is %s SidecarSet %s as well, in fewer namespaces: %s; rename one of them or keep their selectors apart", kind.is, p.with, kind.consequence)
	}
	if refused {
		p.found.refused = append(p.found.refused, field.Invalid(path, value, detail))
	} else {
		p.found.warned = append(p.found.warned, fmt.Sprintf("%s: %q %s", path, value, detail))
	}
}

var containerConflict = kindOfConflict{"a container of", "a Pod that both select is refused, all others get this one"}

func (p *pairing) containers() {
	taken := sets.New[string]() // the names that the containers of the other one have in Pods
	for i := range p.theirs.InitContainers {
		taken.Insert(p.theirs.InitContainers[i].PodInitContainerNames()...)
	}
	for i := range p.theirs.Containers {
		taken.Insert(p.theirs.Containers[i].PodContainerNames()...)
	}
	inits, containers := field.NewPath("spec", "initContainers"), field.NewPath("spec", "containers")
	p.inList(p.mine.InitContainers, p.theirs.InitContainers, (*appsv1beta1.SidecarContainer).PodInitContainerNames, taken, inits)
	p.inList(p.mine.Containers, p.theirs.Containers, (*appsv1beta1.SidecarContainer).PodContainerNames, taken, containers)
}

// inList compares the containers of one list with those of the same list, and with the names
// taken in Pods. OpenKruise compares only the names that users wrote in the same list. inPods
// returns the names that a sidecar of the list has in Pods.
func (p *pairing) inList(mine, theirs []appsv1beta1.SidecarContainer, inPods func(*appsv1beta1.SidecarContainer) []string, taken sets.Set[string], path *field.Path) {
	written := sets.New[string]()
	for i := range theirs {
		written.Insert(theirs[i].Name)
	}
	for i := range mine {
		c, at := &mine[i], path.Index(i).Child("name")
		if written.Has(c.Name) {
			p.note(at, c.Name, containerConflict, p.refused)
			continue
		}
		for _, name := range inPods(c) {
			if taken.Has(name) {
				p.note(at, name, containerConflict, false)
			}
		}
	}
}

// volumes compares volumes by name. SidecarSets are processed in the order of their names: a
// Pod gets the volume of the first one.
func (p *pairing) volumes() {
	kind := kindOfConflict{"another volume of", "a Pod that both select gets the volume of " + min(p.name, p.with)}
	theirs := make(map[string]*corev1.Volume, len(p.theirs.Volumes))
	for i := range p.theirs.Volumes {
		theirs[p.theirs.Volumes[i].Name] = &p.theirs.Volumes[i]
	}
	for i := range p.mine.Volumes {
		mine := &p.mine.Volumes[i]
		if other := theirs[mine.Name]; other != nil && !apiequality.Semantic.DeepEqual(mine, other) {
			p.note(field.NewPath("spec", "volumes").Index(i).Child("name"), mine.Name, kind, p.refused)
		}
	}
}

// annotations finds annotations that both SidecarSets write, if at least one of them
// overwrites. The last SidecarSet in the order of names writes last.
func (p *pairing) annotations() {
	kind := kindOfConflict{"an annotation of", "in a Pod that both select, " + max(p.name, p.with) + " writes it last"}
	written := map[string]bool{} // the keys that the other one writes, and whether it overwrites
	for _, entry := range p.theirs.PatchPodMetadata {
		for key := range entry.Annotations {
			if writes(entry.PatchPolicy) {
				written[key] = written[key] || entry.PatchPolicy == appsv1beta1.SidecarSetOverwritePatchPolicy
			}
		}
	}
	for i, entry := range p.mine.PatchPodMetadata {
		for _, key := range slices.Sorted(maps.Keys(entry.Annotations)) {
			overwrites, both := written[key]
			if both && writes(entry.PatchPolicy) && (overwrites || entry.PatchPolicy == appsv1beta1.SidecarSetOverwritePatchPolicy) {
				p.note(field.NewPath("spec", "patchPodMetadata").Index(i).Child("annotations").Key(key), key, kind, p.refused)
			}
		}
	}
}

// writes reports whether a policy changes an annotation that is present already.
func writes(policy appsv1beta1.SidecarSetPatchPolicyType) bool {
	return policy == appsv1beta1.SidecarSetOverwritePatchPolicy || policy == appsv1beta1.SidecarSetMergePatchJsonPatchPolicy
}
