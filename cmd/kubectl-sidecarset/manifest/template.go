package manifest

import (
	"cmp"
	"maps"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// Template is a Pod, or the template of a workload's Pods.
type Template struct {
	*Object
	// Value is the Pod or the template: an object with metadata and spec.
	Value map[string]any
	// Path is where the template is in its object, such as spec.template; "" for a Pod.
	Path string

	node *yaml.Node
}

// templates says where the kinds with a template have it.
var templates = map[string]string{
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

// Template returns the Pod template of the object; nil if its kind is not one of Kubernetes'
// own kinds with a template.
func (o *Object) Template() (*Template, error) {
	path, known := templates[o.APIVersion+"/"+o.Kind]
	if !known {
		return nil, nil
	}
	t := &Template{Object: o, Value: o.Value, Path: path, node: o.node}
	for _, step := range steps(path) {
		value, ok := t.Value[step].(map[string]any)
		if !ok {
			return nil, o.Errorf("%s is missing; a %s needs it", path, o.Kind)
		}
		at := memberIndex(t.node, step)
		if at < 0 {
			return nil, o.Errorf("%s comes from a YAML merge key (<<), which cannot be edited; write it out", path)
		}
		t.Value, t.node = value, own(t.node, at)
	}
	if _, ok := t.Value["spec"].(map[string]any); !ok {
		return nil, o.Errorf("%s is missing; a Pod needs it", strings.TrimPrefix(path+".spec", "."))
	}
	return t, nil
}

// added are the labels that Kubernetes' controllers add to the Pods of a template. Selectors
// tell Pods of Jobs from others by them.
var added = map[string][]string{
	"Deployment":  {"pod-template-hash"},
	"StatefulSet": {"controller-revision-hash", "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"},
	"DaemonSet":   {"controller-revision-hash", "pod-template-generation"},
	"Job":         {"batch.kubernetes.io/job-name", "job-name", "batch.kubernetes.io/controller-uid", "controller-uid"},
	"CronJob":     {"batch.kubernetes.io/job-name", "job-name", "batch.kubernetes.io/controller-uid", "controller-uid"},
}

// Pod returns the Pod that the workload's controller makes of the template, with the labels that
// it adds. Their values are not known before; here they are the workload's name.
func (t *Template) Pod() map[string]any {
	names := added[t.Kind]
	if len(names) == 0 {
		return t.Value
	}
	metadata, _ := t.Value["metadata"].(map[string]any)
	own, _ := metadata["labels"].(map[string]any)
	labels := map[string]any{}
	for _, name := range names {
		labels[name] = cmp.Or(t.Name, "unknown")
	}
	maps.Copy(labels, own)
	pod, withLabels := maps.Clone(t.Value), map[string]any{}
	maps.Copy(withLabels, metadata)
	withLabels["labels"], pod["metadata"] = labels, withLabels
	return pod
}
