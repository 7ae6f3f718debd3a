package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Template is a Pod, or the template of a workload's Pods.
type Template struct {
	*Object
	// Value is the Pod or the template: an object with spec, and most often with metadata.
	Value map[string]any
	// Path is where the template is in its object, such as spec.template; "" for a Pod.
	Path string
}

// builtIn says where Kubernetes' own kinds have their template: they must have it.
var builtIn = map[string]string{
	"v1/Pod":                   "",
	"v1/PodTemplate":           "template",
	"v1/ReplicationController": "spec.template",
	"apps/v1/Deployment":       "spec.template",
	"apps/v1/StatefulSet":      "spec.template",
	"apps/v1/DaemonSet":        "spec.template",
	"apps/v1/ReplicaSet":       "spec.template",
	"batch/v1/Job":             "spec.template",
	"batch/v1/CronJob":         "spec.jobTemplate.spec.template",
}

// paths are where other kinds may have it: the workloads of OpenKruise and Argo among them.
var paths = []string{
	"spec.template", "template", "spec.jobTemplate.spec.template",
	"spec.template.jobTemplate.spec.template", "spec.template.broadcastJobTemplate.spec.template", // AdvancedCronJob
	"spec.template.statefulSetTemplate.spec.template", "spec.template.advancedStatefulSetTemplate.spec.template", // UnitedDeployment
	"spec.template.cloneSetTemplate.spec.template", "spec.template.deploymentTemplate.spec.template",
}

// Template returns the Pod template of the object; nil if it has none at a place that is known.
func (o *Object) Template() (*Template, error) {
	path, is := builtIn[o.APIVersion+"/"+o.Kind]
	if !is {
		at := slices.IndexFunc(paths, func(path string) bool { return isTemplate(at(o.Value, path)) })
		if at < 0 {
			return nil, nil
		}
		path = paths[at]
	}
	t := &Template{Object: o, Value: o.Value, Path: path}
	for _, step := range steps(path) {
		value, ok := t.Value[step].(map[string]any)
		if !ok {
			return nil, o.Errorf("%s is missing; a %s needs it", path, o.Kind)
		}
		t.Value = value
	}
	if _, ok := t.Value["spec"].(map[string]any); !ok {
		return nil, o.Errorf("%s is missing; a Pod needs it", strings.TrimPrefix(path+".spec", "."))
	}
	return t, nil
}

// at returns what an object has at a path; nil for nothing.
func at(value any, path string) any {
	for _, step := range steps(path) {
		object, _ := value.(map[string]any)
		value = object[step]
	}
	return value
}

// isTemplate reports whether a value is a Pod template.
func isTemplate(value any) bool {
	template, _ := value.(map[string]any)
	return hasContainers(template["spec"])
}

// hasContainers reports whether a value looks like the spec of a Pod.
func hasContainers(value any) bool {
	spec, _ := value.(map[string]any)
	containers, _ := spec["containers"].([]any)
	return slices.ContainsFunc(containers, func(c any) bool {
		container, _ := c.(map[string]any)
		_, named := container["name"].(string)
		return named
	})
}

// Hidden returns where an object without a Template has something that looks like the containers of a
// Pod; "" if it has not. The Pods of such a workload are not known.
func (o *Object) Hidden() string { return hidden(o.Value, "") }

func hidden(value any, path string) string {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			at := strings.TrimPrefix(path+"."+name, ".")
			switch part := value[name].(type) {
			case []any:
				if name == "containers" && hasContainers(value) {
					return at
				}
			case map[string]any: // of a template of Argo Workflows
				if _, runs := part["image"].(string); runs && name == "container" {
					return at
				}
			}
			if found := hidden(value[name], at); found != "" {
				return found
			}
		}
	case []any:
		for i, element := range value {
			if found := hidden(element, fmt.Sprintf("%s[%d]", path, i)); found != "" {
				return found
			}
		}
	}
	return ""
}

// added are the labels that controllers add to the Pods of a template, by kind. Selectors tell Pods
// of Jobs from others by them.
var added = map[string][]string{
	"Deployment":   {"pod-template-hash"},
	"Rollout":      {"rollouts-pod-template-hash"},
	"CloneSet":     {"controller-revision-hash", "pod-template-hash", "apps.kruise.io/cloneset-instance-id"},
	"StatefulSet":  {"controller-revision-hash"},
	"DaemonSet":    {"controller-revision-hash", "pod-template-generation"},
	"Job":          {"batch.kubernetes.io/job-name", "job-name", "batch.kubernetes.io/controller-uid", "controller-uid"},
	"BroadcastJob": {"broadcastjob-name", "broadcastjob-controller-uid"},
}

// maker is the kind of the controller that makes the Pods.
func (t *Template) maker() string {
	switch {
	case t.Kind == "CronJob", strings.HasSuffix(t.Path, ".jobTemplate.spec.template"):
		return "Job"
	case strings.HasSuffix(t.Path, ".broadcastJobTemplate.spec.template"):
		return "BroadcastJob"
	case strings.HasSuffix(t.Path, "tatefulSetTemplate.spec.template"):
		return "StatefulSet"
	case strings.HasSuffix(t.Path, ".cloneSetTemplate.spec.template"):
		return "CloneSet"
	case strings.HasSuffix(t.Path, ".deploymentTemplate.spec.template"):
		return "Deployment"
	}
	return t.Kind
}

// Pod returns the Pod that the workload's controller makes of the template: with the labels and the
// volumes that it adds, and a name. Values that are not known before are the workload's name.
// The Pod shares parts with the template.
func (t *Template) Pod() map[string]any {
	pod := maps.Clone(t.Value)
	metadata, _ := pod["metadata"].(map[string]any)
	if metadata = maps.Clone(metadata); metadata == nil {
		metadata = map[string]any{}
	}
	pod["metadata"] = metadata
	if t.Path == "" {
		return pod
	}
	own, _ := metadata["labels"].(map[string]any)
	labels := map[string]any{}
	owner := cmp.Or(t.Name, "unknown")
	for _, name := range added[t.maker()] {
		labels[name] = owner
	}
	metadata["generateName"] = owner + "-"
	switch spec := t.spec(); {
	case t.maker() == "StatefulSet":
		first, _ := at(spec, "ordinals.start").(int64)
		metadata["name"] = fmt.Sprintf("%s-%d", owner, first)
		labels["statefulset.kubernetes.io/pod-name"], labels["apps.kubernetes.io/pod-index"] = metadata["name"], strconv.FormatInt(first, 10)
	case t.maker() == "Job" && at(spec, "completionMode") == "Indexed":
		labels["batch.kubernetes.io/job-completion-index"] = "0"
	}
	maps.Copy(labels, own)
	if metadata["labels"] = labels; len(labels) == 0 {
		delete(metadata, "labels")
	}
	if claims := t.claims(); len(claims) > 0 {
		podSpec, _ := pod["spec"].(map[string]any)
		podSpec = maps.Clone(podSpec)
		var volumes []any
		for _, name := range claims {
			volumes = append(volumes, map[string]any{"name": name, "persistentVolumeClaim": map[string]any{"claimName": fmt.Sprintf("%s-%s-0", name, owner)}})
		}
		own, _ := podSpec["volumes"].([]any)
		for _, volume := range own {
			if name, _ := at(volume, "name").(string); !slices.Contains(claims, name) {
				volumes = append(volumes, volume)
			}
		}
		podSpec["volumes"], pod["spec"] = volumes, podSpec
	}
	return pod
}

// spec is the spec around the template: of the Job in a CronJob.
func (t *Template) spec() any {
	return at(t.Object.Value, strings.TrimSuffix(strings.TrimSuffix(t.Path, "template"), "."))
}

// claims are the names of the claims that the controller makes for each Pod. A claim takes the place
// of a volume of the template with its name.
func (t *Template) claims() (names []string) {
	if t.Path == "" {
		return nil
	}
	all, _ := at(t.spec(), "volumeClaimTemplates").([]any)
	for _, claim := range all {
		if name, _ := at(claim, "metadata.name").(string); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Apply carries out a JSON patch (RFC 6902) of the Pod on the template.
func (t *Template) Apply(patch []byte) error {
	if len(patch) == 0 {
		return nil
	}
	before, err := json.Marshal(t.Pod())
	if err != nil {
		return t.Errorf("%w", err)
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return t.Errorf("%w", err)
	}
	after, err := operations.Apply(before)
	if err != nil {
		return t.Errorf("%w", err)
	}
	var pod map[string]any
	if err := utiljson.Unmarshal(after, &pod); err != nil {
		return t.Errorf("%w", err)
	}
	// What the controller adds to the Pod is not for the template.
	metadata, _ := t.Value["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	if annotations := at(pod, "metadata.annotations"); annotations != nil {
		metadata["annotations"] = annotations
	}
	spec, _ := pod["spec"].(map[string]any)
	if claims := t.claims(); len(claims) > 0 {
		isClaim := func(volume any) bool { name, _ := at(volume, "name").(string); return slices.Contains(claims, name) }
		all, _ := spec["volumes"].([]any)
		own, _ := at(t.Value, "spec.volumes").([]any)
		volumes := slices.Concat(slices.DeleteFunc(slices.Clone(own), func(v any) bool { return !isClaim(v) }), slices.DeleteFunc(slices.Clone(all), isClaim))
		if spec["volumes"] = volumes; len(volumes) == 0 {
			delete(spec, "volumes")
		}
	}
	t.Value["metadata"], t.Value["spec"], t.document.changed = metadata, spec, true
	return nil
}
