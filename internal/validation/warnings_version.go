package validation

import (
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// relaxedNames is the minor version of the first API servers that take any
// printable name for an environment variable.
const relaxedNames = 32

// DependsOnVersion reports whether it depends on the version of the API server
// what becomes of the SidecarSet's Pods, so that Environment.ServerMinor is worth
// a look-up.
func DependsOnVersion(set *appsv1beta1.SidecarSet) bool {
	uses := false
	eachRelaxedName(&set.Spec, func(*field.Path, string) { uses = true })
	return uses
}

// warnAboutVersion is about what API servers of this version refuse in Pods.
func (w *warner) warnAboutVersion(spec *appsv1beta1.SidecarSetSpec, minor int) {
	if minor == 0 || minor >= relaxedNames {
		return
	}
	eachRelaxedName(spec, func(path *field.Path, name string) {
		w.add(path, "API servers take names such as %q since Kubernetes 1.%d, and this one has 1.%d, so that it refuses Pods with the sidecar; use letters, digits, '_', '-' and '.', with no digit first", name, relaxedNames, minor)
	})
}

// eachRelaxedName calls visit for names and prefixes of environment variables
// that API servers did not always take.
func eachRelaxedName(spec *appsv1beta1.SidecarSetSpec, visit func(path *field.Path, name string)) {
	check := func(path *field.Path, name string) {
		if name != "" && len(validation.IsEnvVarName(name)) > 0 {
			visit(path, name)
		}
	}
	each := func(containers []appsv1beta1.SidecarContainer, path *field.Path) {
		for i := range containers {
			c, at := &containers[i].Container, path.Index(i)
			for j := range c.Env {
				check(at.Child("env").Index(j).Child("name"), c.Env[j].Name)
			}
			for j := range c.EnvFrom {
				check(at.Child("envFrom").Index(j).Child("prefix"), c.EnvFrom[j].Prefix)
			}
		}
	}
	each(spec.InitContainers, field.NewPath("spec", "initContainers"))
	each(spec.Containers, field.NewPath("spec", "containers"))
}
