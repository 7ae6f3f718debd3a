package inplace

import (
	"maps"
	"reflect"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
)

// With returns a copy that also has the differences between the revisions of a history and the
// current one, which has that spec and that hash. It compares no revision that d has already.
func (d Differences) With(history revision.History, spec map[string]any, hashWithoutImage string) (Differences, error) {
	all := maps.Clone(d)
	if all == nil {
		all = Differences{}
	}
	var current map[string]any // the spec as ControllerRevisions have it
	for _, r := range history {
		hash := r.Annotations[appsv1beta1.AnnotationHashWithoutImage]
		name := podstate.MakeName(hash)
		if _, is := all[name]; is || hash == "" || hash == hashWithoutImage {
			continue
		}
		if current == nil {
			var err error
			if current, err = recordable(spec); err != nil {
				return nil, err
			}
		}
		if recorded, err := revision.Spec(r.Data.Raw); err != nil {
			all[name] = Difference{Other: true} // unreadable: anything may differ
		} else {
			all[name] = Compare(recorded, current)
		}
	}
	return all, nil
}

// recordable is a spec in the form in which ControllerRevisions record it.
func recordable(spec map[string]any) (map[string]any, error) {
	data, err := revision.Data(spec)
	if err != nil {
		return nil, err
	}
	return revision.Spec(data)
}

// Fixed returns the fields in which a spec differs from what a ControllerRevision records, and
// that no running Pod can get, such as spec.containers[log].env. The spec is defaulted.
func Fixed(recorded []byte, spec map[string]any) ([]string, error) {
	old, err := revision.Spec(recorded)
	if err != nil {
		return nil, err
	}
	now, err := recordable(spec)
	if err != nil {
		return nil, err
	}
	fields := fixedIn("containers", old, now)
	if HasNative(old) || HasNative(now) {
		fields = append(fields, fixedIn("initContainers", old, now)...)
	}
	return fields, nil
}

func fixedIn(name string, old, now map[string]any) (fields []string) {
	before, after := list(old, name), list(now, name)
	was, is := containerNames(before), containerNames(after)
	if !slices.Equal(was, is) {
		for _, container := range is {
			if !slices.Contains(was, container) {
				fields = append(fields, "spec."+name+"["+container+"], which is new")
			}
		}
		for _, container := range was {
			if !slices.Contains(is, container) {
				fields = append(fields, "spec."+name+"["+container+"], which is gone")
			}
		}
		if len(fields) == 0 {
			fields = []string{"spec." + name + ", in the order"}
		}
		return fields
	}
	for i := range after {
		a, _ := before[i].(map[string]any)
		b, _ := after[i].(map[string]any)
		at := "spec." + name + "[" + is[i] + "]."
		both := others(a)
		maps.Copy(both, others(b))
		for _, member := range slices.Sorted(maps.Keys(both)) {
			switch {
			case reflect.DeepEqual(a[member], b[member]):
			case member == "imagePullPolicy" && defaults.PolicyFollowsTag(a, b):
				fields = append(fields, at+member+" ("+defaults.KeepPolicy(a)+")")
			default:
				fields = append(fields, at+member)
			}
		}
		b = maps.Clone(b)
		maps.Copy(b, others(a))
		var d Difference
		if d.compare([]any{a}, []any{b}, name == "initContainers"); d.Other && !reflect.DeepEqual(a["resources"], b["resources"]) {
			fields = append(fields, at+"resources")
		}
	}
	return fields
}

func containerNames(containers []any) []string {
	names := make([]string, len(containers))
	for i := range containers {
		c, _ := containers[i].(map[string]any)
		names[i], _ = c["name"].(string)
	}
	return names
}
