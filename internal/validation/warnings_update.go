package validation

import (
	"maps"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/members"
)

// update names the changes that a rolling update cannot bring to running Pods. Only images,
// cpu and memory change in place. If anything else that the hash covers changes, a Pod
// cannot be updated at all. If a member that the hash does not cover changes, Pods count as
// updated without the change.
func (w *warner) update(env Environment) {
	path := field.NewPath("spec")
	before, after := specOf(env.Replaced), specOf(env.Object)
	if before == nil || after == nil {
		return
	}
	hasNative := inplace.HasNative(before) || inplace.HasNative(after)
	d := inplace.Compare(before, after)
	isStuck := !env.SameWithoutImages && (d.Other || d.Restarts)
	for _, m := range members.Injected {
		switch was, is := before[m.Name], after[m.Name]; {
		case m.Outdates == members.Always || m.Outdates == members.WithNative && hasNative:
			if isStuck {
				w.changedContainers(was, is, path.Child(m.Name))
			}
		case !apiequality.Semantic.DeepEqual(was, is):
			w.add(path.Child(m.Name), "changed for new Pods only; running Pods do not get the change and count as updated; recreate the Pods that need it")
		}
	}
}

// changedContainers names the members of each container that keep running Pods
// from being updated.
func (w *warner) changedContainers(before, after any, path *field.Path) {
	const unreachable = "running Pods cannot be updated in place until they are recreated, neither to this revision nor to later images; to update them in place, change only images, cpu and memory, and remove no amount"
	old := map[string]map[string]any{}
	for _, was := range objectsOf(before) {
		old[nameOf(was)] = was
	}
	for i, is := range objectsOf(after) {
		name := nameOf(is)
		was, existed := old[name]
		delete(old, name)
		switch fields := changedMembers(was, is); {
		case !existed:
			w.add(path.Index(i), "%s is new: %s", name, unreachable)
		case len(fields) > 0:
			w.add(path.Index(i), "%s: %s: %s", name, strings.Join(fields, ", "), unreachable)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		w.add(path, "%s was removed: %s", name, unreachable)
	}
}

// changedMembers says which members differ, except the image. Of resources, it names each
// amount.
func changedMembers(before, after map[string]any) (changed []string) {
	for _, name := range sets.List(sets.KeySet(before).Union(sets.KeySet(after)).Delete("image")) {
		was, is := before[name], after[name]
		switch {
		case apiequality.Semantic.DeepEqual(was, is):
		case name == "resources" || name == "limits" || name == "requests":
			old, _ := was.(map[string]any)
			now, _ := is.(map[string]any)
			for _, amount := range changedMembers(old, now) {
				changed = append(changed, name+"."+amount)
			}
		case name == "imagePullPolicy" && defaults.PolicyFollowsTag(before, after):
			changed = append(changed, name+" changed ("+defaults.KeepPolicy(before)+")")
		case is == nil:
			changed = append(changed, name+" removed")
		default:
			changed = append(changed, name+" changed")
		}
	}
	return changed
}

func specOf(object map[string]any) map[string]any {
	spec, _ := object["spec"].(map[string]any)
	return spec
}

// objectsOf are the elements of a list; nil for elements that are not objects.
func objectsOf(list any) []map[string]any {
	elems, _ := list.([]any)
	objects := make([]map[string]any, len(elems))
	for i, elem := range elems {
		objects[i], _ = elem.(map[string]any)
	}
	return objects
}

func nameOf(object map[string]any) string {
	name, _ := object["name"].(string)
	return name
}
