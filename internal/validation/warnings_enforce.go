package validation

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// mostVolumes is how many volumes a warning names.
const mostVolumes = 10

// enforcedVolumes finds volumes of an enforced SidecarSet that an app may have too, under the same
// name and for another purpose. It takes a name that contains the SidecarSet's name, or that of
// one of its containers, for one that no app has.
func (w *warner) enforcedVolumes(set *appsv1beta1.SidecarSet, path *field.Path) {
	own := []string{set.Name}
	for c := range containersOf(&set.Spec) {
		own = append(own, c.Name)
	}
	used := usedVolumes(&set.Spec)
	var names []string
	for i := range set.Spec.Volumes {
		name := set.Spec.Volumes[i].Name
		isOwn := func(owner string) bool { return owner != "" && strings.Contains(name, owner) }
		if used.Has(name) && !slices.ContainsFunc(own, isOwn) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	example := set.Name + "-" + names[0]
	if len(names) > mostVolumes {
		names = append(names[:mostVolumes], "…")
	}
	w.add(path, "if a Pod has a volume of its own called %s, the enforced one of the same kind replaces it for the app too, and a Pod whose persistentVolumeClaim, secret, configMap or projected volume would be replaced by another kind is refused; "+
		"choose names that no app has, such as %s", strings.Join(names, ", "), example)
}
