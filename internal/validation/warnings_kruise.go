package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// kruiseLaunchPriority is the annotation of Pods by which OpenKruise starts containers in their
// order.
const kruiseLaunchPriority = "apps.kruise.io/container-launch-priority"

// What the variables of OpenKruise are for.
const (
	startsFirst = "starts before the app"
	endsWithJob = "ends with the app of a Job"
)

// kruiseVariables are the variables on which programs of OpenKruise act, other than its
// SidecarSets, with what a native sidecar does instead.
var kruiseVariables = map[string]string{
	"KRUISE_CONTAINER_PRIORITY":                         startsFirst,
	"KRUISE_CONTAINER_BARRIER":                          startsFirst,
	"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT":            endsWithJob,
	"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT_WITH_IMAGE": endsWithJob,
	"KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE":         endsWithJob,
}

// kruiseVariables finds variables on which only OpenKruise acts.
func (w *warner) kruiseVariables(c *appsv1beta1.SidecarContainer, path *field.Path) {
	for i := range c.Env {
		name := c.Env[i].Name
		if does, ok := kruiseVariables[name]; ok {
			w.add(path.Index(i).Child("name"), "only OpenKruise acts on %s; without OpenKruise, use a native sidecar (an element of initContainers with restartPolicy Always), which %s, and remove the variable", name, does)
		}
	}
}
