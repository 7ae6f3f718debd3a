package defaults

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

func defaultContainer(c node) {
	defaultSidecar(c)
	c.unset("imagePullPolicy", pullPolicy(c.text("image")))
	c.unset("terminationMessagePath", "/dev/termination-log")
	c.unset("terminationMessagePolicy", "File")
	for port := range c.elements("ports") {
		port.unset("protocol", "TCP")
	}
	for env := range c.elements("env") {
		if source, ok := env.child("valueFrom"); ok {
			defaultFieldRef(source)
		}
	}
	if resources, ok := c.child("resources"); ok {
		roundUp(resources, "limits")
		roundUp(resources, "requests")
	}
	for _, name := range []string{"livenessProbe", "readinessProbe"} {
		if probe, ok := c.child(name); ok {
			defaultProbe(probe)
		}
	}
	if probe, ok := c.child("startupProbe"); ok {
		defaultStartupProbe(probe)
	}
	if lifecycle, ok := c.child("lifecycle"); ok {
		for _, name := range []string{"postStart", "preStop"} {
			if handler, ok := lifecycle.child(name); ok {
				defaultHTTPGet(handler)
			}
		}
	}
}

// defaultSidecar fills in what a SidecarSet adds to a container.
// shareVolumeDevicePolicy stays absent: it is newer than hashes that count.
func defaultSidecar(c node) {
	if upgrade, ok := c.ensure("upgradeStrategy"); ok {
		upgrade.unset("upgradeType", "ColdUpgrade")
	}
	if share, ok := c.ensure("shareVolumePolicy"); ok {
		share.unset("type", "disabled")
	}
	for transfer := range c.elements("transferEnv") {
		if source, ok := transfer.child("sourceContainerNameFrom"); ok {
			defaultFieldRef(source)
			if ref, ok := source.child("fieldRef"); ok {
				ref.absent("fieldPath", "") // required by the schema, checked later
			}
		}
	}
	if policy, ok := c.child("resourcesPolicy"); ok {
		policy.unset("targetContainersNameRegex", ".*")
		policy.ensure("resourcesExpr")
	}
}

func defaultFieldRef(source node) {
	if ref, ok := source.child("fieldRef"); ok {
		ref.unset("apiVersion", "v1")
	}
}

// defaultProbe is for liveness and readiness probes. The service of a gRPC
// probe is not defaulted.
func defaultProbe(probe node) {
	defaultHTTPGet(probe)
	probe.unset("timeoutSeconds", int64(1))
	probe.unset("periodSeconds", int64(10))
	probe.unset("successThreshold", int64(1))
	probe.unset("failureThreshold", int64(3))
}

// defaultStartupProbe fills in what validation demands, and no more. The
// reference defaults nothing in startup probes, so SidecarSets that it stored
// have these three members, and may lack the others: to fill those in would
// change the stored hash, and all Pods would count as outdated. The API server
// fills them in on the Pod.
func defaultStartupProbe(probe node) {
	defaultHTTPGet(probe)
	probe.unset("successThreshold", int64(1))
}

func defaultHTTPGet(handler node) {
	if get, ok := handler.child("httpGet"); ok {
		get.unset("path", "/")
		get.unset("scheme", "HTTP")
	}
}

// roundUp rounds quantities up to the milli, the finest that Pods are stored
// with. A quantity that needs no rounding stays as the user wrote it.
func roundUp(resources node, list string) {
	quantities, ok := resources.child(list)
	if !ok {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(quantities.members)) {
		q, err := resource.ParseQuantity(quantityText(quantities.members[name]))
		if err != nil {
			continue
		}
		if exact := q.RoundUp(resource.Milli); !exact {
			quantities.set(name, q.String())
		}
	}
}

// quantityText is a quantity as JSON holds it: a string or a number.
func quantityText(v any) string {
	switch v := v.(type) {
	case string:
		return strings.TrimSpace(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default: // whole numbers need no rounding
		return ""
	}
}
