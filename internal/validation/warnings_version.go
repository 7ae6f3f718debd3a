package validation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// newer is a member of Pods that API servers refuse before the minor version since. API
// servers before the minor version known do not have the member and drop it; known is 0 if all
// have it. The list has only members that validation accepts, and that an API server was seen
// to refuse.
type newer struct {
	path         *field.Path
	what         string
	known, since int
	remedy       string
}

// DependsOnVersion reports whether the version of the API server decides what happens to the
// SidecarSet's Pods. Only then does Environment.ServerMinor have to be looked up.
func DependsOnVersion(set *appsv1beta1.SidecarSet) bool {
	return len(newerMembers(&set.Spec)) > 0
}

// warnAboutVersion warns about members that an API server of this version refuses.
func (w *warner) warnAboutVersion(spec *appsv1beta1.SidecarSetSpec, minor int) {
	if minor == 0 {
		return
	}
	for _, n := range newerMembers(spec) {
		if n.known <= minor && minor < n.since {
			w.add(n.path, "API servers take %s since Kubernetes 1.%d, and this one has 1.%d, so that it refuses Pods with the sidecar; %s", n.what, n.since, minor, n.remedy)
		}
	}
}

func newerMembers(spec *appsv1beta1.SidecarSetSpec) []newer {
	var found []newer
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], field.NewPath("spec", "initContainers").Index(i)
		found = append(found, newerInContainer(&c.Container, at)...)
		if c.IsNative() && len(c.RestartPolicyRules) > 0 {
			found = append(found, newer{at.Child("restartPolicyRules"), "restart rules of native sidecars", 35, 36, "remove them"})
		} else if !c.IsNative() {
			found = append(found, newerRestarts(&c.Container, at, "of init containers, except Always,")...)
		}
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i].Container, field.NewPath("spec", "containers").Index(i)
		found = append(found, newerInContainer(c, at)...)
		found = append(found, newerRestarts(c, at, "of containers other than init containers")...)
	}
	return found
}

// newerRestarts are what a container other than a native sidecar has of its own restarts.
func newerRestarts(c *corev1.Container, path *field.Path, of string) []newer {
	var found []newer
	if c.RestartPolicy != nil {
		found = append(found, newer{path.Child("restartPolicy"), "restart policies " + of, 0, 35, "remove it and restartPolicyRules"})
	}
	for i := range c.RestartPolicyRules {
		if c.RestartPolicyRules[i].Action == corev1.ContainerRestartRuleActionRestartAllContainers {
			found = append(found, newer{path.Child("restartPolicyRules").Index(i).Child("action"), "RestartAllContainers", 35, 36, "use Restart"})
		}
	}
	return found
}

func newerInContainer(c *corev1.Container, path *field.Path) []newer {
	var found []newer
	name := func(path *field.Path, name string) {
		if name != "" && len(validation.IsEnvVarName(name)) > 0 {
			found = append(found, newer{path, fmt.Sprintf("names such as %q", name), 0, 32, "use letters, digits, '_', '-' and '.', with no digit first"})
		}
	}
	for i := range c.Env {
		at := path.Child("env").Index(i)
		name(at.Child("name"), c.Env[i].Name)
		if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			found = append(found, newer{at.Child("valueFrom", "fileKeyRef"), "variables from files", 0, 35, "use configMapKeyRef or secretKeyRef"})
		}
	}
	for i := range c.EnvFrom {
		name(path.Child("envFrom").Index(i).Child("prefix"), c.EnvFrom[i].Prefix)
	}
	sleep := func(handler *corev1.LifecycleHandler, path *field.Path) {
		if handler != nil && handler.Sleep != nil && handler.Sleep.Seconds == 0 {
			found = append(found, newer{path.Child("sleep", "seconds"), "a sleep of 0 seconds", 0, 33, "use 1 or more, or remove the hook"})
		}
	}
	if c.Lifecycle != nil {
		sleep(c.Lifecycle.PostStart, path.Child("lifecycle", "postStart"))
		sleep(c.Lifecycle.PreStop, path.Child("lifecycle", "preStop"))
	}
	return found
}
