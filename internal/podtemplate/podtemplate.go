// Package podtemplate knows how to ask an API server whether Pods may have the containers and
// volumes of a SidecarSet: as a PodTemplate that is created in a dry run. API servers check the
// template as they check a Pod, for their own version and feature gates, and call no admission
// of Pods. The package makes the question and reads the answer. Its callers send the question.
package podtemplate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/members"
)

// DryRun and FieldValidation are the parameters of the request that a Question is for.
const (
	DryRun          = "All"  // nothing is stored
	FieldValidation = "Warn" // members that the API server does not know are named in warnings
)

// Question is a PodTemplate, and the SidecarSet that it is made from.
type Question struct {
	set   *appsv1beta1.SidecarSet
	spec  map[string]any // of the template's Pod
	needs []need         // what the template's Pod has for its sidecars, and most Pods lack
}

// need is a member of a sidecar, by its path, that only some Pods can have.
type need struct{ path, warning string }

// New returns the question about a SidecarSet of the hub version. It shares the SidecarSet's
// values, and changes none of them.
func New(of *hub.SidecarSet) Question {
	q := Question{set: of.Set, spec: map[string]any{}}
	sent, _ := of.Object["spec"].(map[string]any)
	for _, name := range members.OfPods() {
		if value := sent[name]; !isEmpty(value) {
			q.spec[name] = value
		}
	}
	isHostProcess := q.bringWhatPodsBring()
	for _, m := range members.Injected {
		if m.Kind != members.Containers {
			continue
		}
		list, _ := q.spec[m.Name].([]any)
		list = slices.Clone(list)
		for i, elem := range list {
			container, isObject := elem.(map[string]any)
			if !isObject {
				continue // null
			}
			container = maps.Clone(container)
			for _, own := range appsv1beta1.SidecarMembers() {
				delete(container, own)
			}
			if isHostProcess { // on the network of the node a port needs an equal hostPort, which Pods get by default
				delete(container, "ports")
			}
			list[i] = container
		}
		if list != nil {
			q.spec[m.Name] = list
		}
	}
	if q.spec["containers"] == nil { // a Pod needs one
		q.spec["containers"] = []any{placeholder}
	}
	return q
}

// bringWhatPodsBring adds the members that a Pod has to have in addition to its sidecars, because not
// every Pod lacks them. It reports whether the sidecars are HostProcess containers of Windows.
func (q *Question) bringWhatPodsBring() (isHostProcess bool) {
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	stops, isWindows := false, false
	var claims []any
	claimed := map[string]bool{"": true}
	need := func(path *field.Path, format string, args ...any) {
		q.needs = append(q.needs, need{path.String(), fmt.Sprintf(format, args...)})
	}
	for c, path := range q.containers {
		for i, claim := range c.Resources.Claims {
			if !claimed[claim.Name] {
				claims = append(claims, map[string]any{"name": claim.Name, "resourceClaimTemplateName": "placeholder"})
			}
			claimed[claim.Name] = true
			need(path.Child("resources", "claims").Index(i).Child("name"), "a Pod without an element %s of spec.resourceClaims is refused; select only Pods that have it", claim.Name)
		}
		if hooks := c.Lifecycle; hooks != nil {
			path := path.Child("lifecycle")
			for i, hook := range []*corev1.LifecycleHandler{hooks.PostStart, hooks.PreStop} {
				if hook != nil && hook.Sleep != nil && hook.Sleep.Seconds > corev1.DefaultTerminationGracePeriodSeconds {
					grace = max(grace, hook.Sleep.Seconds)
					need(path.Child([]string{"postStart", "preStop"}[i], "sleep", "seconds"), "a Pod with a shorter terminationGracePeriodSeconds, which is %d by default, is refused; select only Pods with a longer one, or sleep at most %[1]d seconds", corev1.DefaultTerminationGracePeriodSeconds)
				}
			}
			if hooks.StopSignal != nil {
				stops = true
				need(path.Child("stopSignal"), "a Pod without spec.os.name is refused; select only Pods that have it")
			}
		}
		sc, path := c.SecurityContext, path.Child("securityContext")
		if sc == nil {
			continue
		}
		if sc.ProcMount != nil && *sc.ProcMount == corev1.UnmaskedProcMount {
			q.spec["hostUsers"] = false
			need(path.Child("procMount"), "a Pod without hostUsers false is refused; select only Pods that have it")
		}
		if o := sc.WindowsOptions; o != nil {
			isWindows = true
			if o.HostProcess != nil && *o.HostProcess {
				isHostProcess = true
				need(path.Child("windowsOptions", "hostProcess"), "a Pod without hostNetwork, or with a container that does not have it, is refused; select only Pods of HostProcess containers")
			}
		}
	}
	q.spec["terminationGracePeriodSeconds"] = grace
	if claims != nil {
		q.spec["resourceClaims"] = claims
	}
	switch {
	case stops && isWindows:
		q.spec["os"] = map[string]any{"name": string(corev1.Windows)}
	case stops:
		q.spec["os"] = map[string]any{"name": string(corev1.Linux)}
	}
	if isHostProcess {
		q.spec["hostNetwork"] = true
		q.spec["securityContext"] = map[string]any{"windowsOptions": map[string]any{"hostProcess": true}}
	}
	return isHostProcess
}

// containers yields the containers of the SidecarSet with their paths.
func (q *Question) containers(yield func(*appsv1beta1.SidecarContainer, *field.Path) bool) {
	for i := range q.set.Spec.InitContainers {
		if !yield(&q.set.Spec.InitContainers[i], field.NewPath("spec", "initContainers").Index(i)) {
			return
		}
	}
	for i := range q.set.Spec.Containers {
		if !yield(&q.set.Spec.Containers[i], field.NewPath("spec", "containers").Index(i)) {
			return
		}
	}
}

// Equal reports whether two questions have the same answer.
func (q Question) Equal(other Question) bool {
	return apiequality.Semantic.DeepEqual(q.spec, other.spec)
}

// Body is the PodTemplate as JSON. The API server makes up its name.
func (q Question) Body() []byte { return bodyWith(q.spec) }

func bodyWith(spec map[string]any) []byte {
	text, _ := json.Marshal(map[string]any{ // a tree of JSON values always marshals
		"apiVersion": "v1", "kind": "PodTemplate",
		"metadata": map[string]any{"generateName": "sidecarset-dry-run-"},
		"template": map[string]any{"spec": spec},
	})
	return text
}

// WithPodResources is a PodTemplate whose Pod has spec.resources.
func WithPodResources() []byte {
	limits := map[string]any{"limits": map[string]any{"cpu": "1"}}
	return bodyWith(map[string]any{"containers": []any{placeholder}, "resources": limits})
}

// HasPodResources reports whether an answer to WithPodResources says that API servers keep
// spec.resources. Older ones, and those without the feature gate PodLevelResources, drop it.
func HasPodResources(answer []byte) bool {
	var created struct {
		Template struct {
			Spec struct {
				Resources map[string]any `json:"resources"`
			} `json:"spec"`
		} `json:"template"`
	}
	return json.Unmarshal(answer, &created) == nil && created.Template.Spec.Resources != nil
}

// placeholder is for a Pod that has no container of its own.
var placeholder = map[string]any{"name": "sidecarset-placeholder", "image": "placeholder"}
