package validation

import (
	"fmt"
	"strconv"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// MayKeep reports whether an update of old may keep problems that old has. It may not in three
// cases. The update changes which Pods are selected, what patchPodMetadata writes, or the base
// of a canary, or it resumes injection: then the same problem can harm other Pods. Or old
// exceeds a bound: a check of it would take long. Or no API server could have stored its name.
func MayKeep(set, old *appsv1beta1.SidecarSet, replaced map[string]any) bool {
	return len(Bounds(old, nil, replaced, nil)) == 0 && len(utilvalidation.IsDNS1123Subdomain(set.Name)) == 0 &&
		(set.Spec.InjectionStrategy.Paused || !old.Spec.InjectionStrategy.Paused) &&
		apiequality.Semantic.DeepEqual(set.Spec.Selector, old.Spec.Selector) &&
		apiequality.Semantic.DeepEqual(set.Spec.NamespaceSelector, old.Spec.NamespaceSelector) &&
		apiequality.Semantic.DeepEqual(set.Spec.PatchPodMetadata, old.Spec.PatchPodMetadata) &&
		appsv1beta1.BaseOfCanary(set.Annotations) == appsv1beta1.BaseOfCanary(old.Annotations)
}

// Keep divides the problems that Update has found in object. Those in kept are just as bad in
// old: the same problem, with the same value, in the same place. The others are in worse.
// Without Keep, a stored SidecarSet with a problem could not even be paused. A problem of an
// element that has a name moves with the element. Problems with the whitelist are never kept:
// the administrator decides at each update. env is old's environment, and refused is what the API
// server refuses of old. Call MayKeep first.
func Keep(errs field.ErrorList, object map[string]any, old *appsv1beta1.SidecarSet, env Environment, refused field.ErrorList) (worse, kept field.ErrorList) {
	before := map[string]int{}
	for _, err := range append(contentProblems(old, env), refused...) {
		before[identify(err, env.Object)]++
	}
	for _, err := range errs {
		if problem := identify(err, object); before[problem] > 0 {
			before[problem]-- // a second one is new, such as a third container of one name
			kept = append(kept, err)
		} else {
			worse = append(worse, err)
		}
	}
	return worse, kept
}

// identify returns the text of a problem, without the places of elements in their lists.
func identify(err *field.Error, object map[string]any) string {
	problem := *err
	problem.Field = namedPath(err.Field, object)
	return problem.Error()
}

// namedPath returns a path into a value, with elements of lists by their names instead of
// their indexes, such as spec.containers[name="log"].image.
func namedPath(path string, value any) string {
	var named strings.Builder
	for path != "" {
		if inner, isElement := strings.CutPrefix(path, "["); isElement {
			list, _ := value.([]any)
			index, rest, _ := strings.Cut(inner, "]")
			i, err := strconv.Atoi(index)
			if err != nil || i < 0 || i >= len(list) { // a key of a map
				break
			}
			value, path = list[i], rest
			named.WriteString("[" + elementName(value, i) + "]")
			continue
		}
		path = strings.TrimPrefix(path, ".")
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		object, _ := value.(map[string]any)
		value = object[path[:end]]
		named.WriteString("." + path[:end])
		if path = path[end:]; end == 0 {
			break
		}
	}
	return named.String() + path
}

// identifying are members that tell elements of a list apart. The name of a mount is that
// of its volume, so its path comes first.
var identifying = []string{"mountPath", "devicePath", "containerPort", "name", "path", "key", "orderedKey", "resourceName"}

// elementName returns what identifies an element of a list: a member, or the value if it
// has no members, or else the index.
func elementName(value any, index int) string {
	switch element := value.(type) {
	case string:
		return strconv.Quote(element)
	case map[string]any:
		for _, member := range identifying {
			if id, has := element[member]; has {
				return fmt.Sprintf("%s=%q", member, fmt.Sprint(id))
			}
		}
	}
	return strconv.Itoa(index)
}
