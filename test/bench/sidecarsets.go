package bench

import (
	"fmt"
	"maps"
)

// matchingApp is the value of the label app that exactly one SidecarSet of
// SidecarSets selects.
const matchingApp = "checkout"

// SidecarSets returns count SidecarSets as the API server serves them: 70 % select by one label,
// 20 % by two, 10 % by a label and an expression. Only the one in the middle selects a fixture
// Pod.
func SidecarSets(count int) []map[string]any {
	sets := make([]map[string]any, 0, count)
	for i := range count {
		name := fmt.Sprintf("sidecarset-%05d", i)
		app := fmt.Sprintf("app-%05d", i)
		if i == count/2 {
			app = matchingApp
		}
		sets = append(sets, sidecarSet(name, selector(i, app)))
	}
	return sets
}

func selector(i int, app string) map[string]any {
	selected := map[string]any{"matchLabels": map[string]any{"app": app}}
	switch {
	case i%10 == 9:
		selected["matchExpressions"] = []any{map[string]any{"key": "tier", "operator": "In", "values": []any{"backend", "frontend"}}}
	case i%10 >= 7:
		selected["matchLabels"].(map[string]any)["team"] = "payments"
	}
	return selected
}

// sidecarSet returns a SidecarSet that injects two containers, one init container and two
// volumes. It has the defaults that the operator's webhook writes, and an up-to-date status, as
// SidecarSets nearly always have.
func sidecarSet(name string, selector map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": "apps.kruise.io/v1beta1",
		"kind":       "SidecarSet",
		"metadata": map[string]any{
			"name": name, "uid": "uid-" + name, "resourceVersion": "1", "generation": int64(1),
			"annotations": map[string]any{
				"kruise.io/sidecarset-hash":               "w4447bwz57b6dz2cd59575dx66z9b754c4x5zzbz9bd57f56b4x4zx5c784c4c4w",
				"kruise.io/sidecarset-hash-without-image": "8d4bx4bfv78fz8d9v582fb8vvxwcfcbbv6565c82bzz8z4db2bz68fd6z4b789c2",
			},
		},
		"spec": map[string]any{
			"selector":       selector,
			"updateStrategy": map[string]any{"type": "NotUpdate"},
			"initContainers": []any{sidecar("prepare", nil)},
			"containers": []any{
				sidecar("log-agent", map[string]any{"podInjectPolicy": "AfterAppContainer"}),
				sidecar("mesh", map[string]any{"podInjectPolicy": "BeforeAppContainer"}),
			},
			"volumes": []any{
				map[string]any{"name": "sidecar-logs", "emptyDir": map[string]any{}},
				map[string]any{"name": "sidecar-config", "configMap": map[string]any{"name": "sidecar-config", "defaultMode": int64(420)}},
			},
		},
		"status": map[string]any{
			"observedGeneration": int64(1), "latestRevision": name + "-6565dfc8d5", "collisionCount": int64(0),
			"matchedPods": int64(0), "updatedPods": int64(0), "readyPods": int64(0),
		},
	}
}

func sidecar(name string, more map[string]any) map[string]any {
	container := map[string]any{
		"name": name, "image": "registry.example.com/sidecars/" + name + ":v3.1.4",
		"args": []any{"--config=/etc/sidecar/config.yaml", "--log-level=info"},
		"env": []any{
			map[string]any{"name": "POD_NAME", "valueFrom": map[string]any{"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": "metadata.name"}}},
			map[string]any{"name": "REGION", "value": "eu-central"},
		},
		"resources": map[string]any{
			"limits":   map[string]any{"cpu": "200m", "memory": "128Mi"},
			"requests": map[string]any{"cpu": "50m", "memory": "64Mi"},
		},
		"volumeMounts": []any{
			map[string]any{"name": "sidecar-logs", "mountPath": "/var/log/app"},
			map[string]any{"name": "sidecar-config", "mountPath": "/etc/sidecar", "readOnly": true},
		},
		"imagePullPolicy":          "IfNotPresent",
		"terminationMessagePath":   "/dev/termination-log",
		"terminationMessagePolicy": "File",
	}
	maps.Copy(container, more)
	return container
}
