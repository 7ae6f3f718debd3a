package inject

import (
	"encoding/json"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// ViewOf reads a PodView from a Pod given as JSON values. What has an
// unexpected type reads as absent. The view has AllParts. The webhook reads the
// same view from the request's bytes without building these values.
func ViewOf(pod map[string]any) PodView {
	metadata, _ := pod["metadata"].(map[string]any)
	spec, _ := pod["spec"].(map[string]any)
	return PodView{
		Labels:           stringMap(metadata["labels"]),
		Annotations:      stringMap(metadata["annotations"]),
		InitContainers:   containerViews(spec["initContainers"]),
		Containers:       containerViews(spec["containers"]),
		Volumes:          names(spec["volumes"]),
		ImagePullSecrets: names(spec["imagePullSecrets"]),
		Parts:            AllParts,
	}
}

func stringMap(value any) map[string]string {
	members, ok := value.(map[string]any)
	if !ok || members == nil {
		return nil
	}
	out := make(map[string]string, len(members))
	for key, v := range members {
		if s, ok := v.(string); ok {
			out[key] = s
		}
	}
	return out
}

func containerViews(value any) []ContainerView {
	list, ok := value.([]any)
	if !ok || list == nil {
		return nil
	}
	views := make([]ContainerView, len(list))
	for i, item := range list {
		c, _ := item.(map[string]any)
		views[i] = ContainerView{Name: text(c, "name"), Image: text(c, "image"), Injected: injected(c), Raw: rawParts(c)}
	}
	return views
}

func rawParts(container map[string]any) *RawParts {
	return &RawParts{
		Env:           raw(container["env"]),
		VolumeMounts:  raw(container["volumeMounts"]),
		VolumeDevices: raw(container["volumeDevices"]),
		Resources:     raw(container["resources"]),
		RestartPolicy: text(container, "restartPolicy"),
	}
}

// raw is nil for what is absent and for what is no JSON value.
func raw(value any) json.RawMessage {
	if value == nil {
		return nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	return data
}

// injected says whether the first env named IS_INJECTED is the literal "true".
func injected(container map[string]any) bool {
	env, _ := container["env"].([]any)
	for _, item := range env {
		if e, _ := item.(map[string]any); text(e, "name") == appsv1beta1.EnvInjected {
			return text(e, "value") == "true"
		}
	}
	return false
}

func names(value any) []string {
	list, ok := value.([]any)
	if !ok || list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, item := range list {
		members, _ := item.(map[string]any)
		out[i] = text(members, "name")
	}
	return out
}

func text(object map[string]any, name string) string {
	s, _ := object[name].(string)
	return s
}

// cloneObject copies JSON values of whatever Go types they have.
func cloneObject(object map[string]any) (map[string]any, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := decodeJSON(data, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// decodeJSON keeps integers integers, as the API server's clients do.
func decodeJSON(data []byte, into *map[string]any) error { return utiljson.Unmarshal(data, into) }
