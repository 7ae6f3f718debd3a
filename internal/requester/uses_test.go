package requester_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/requester"
)

func TestUses(t *testing.T) {
	const c = "spec.containers[0]."
	container := func(members string) string { return "containers: [{name: agent, image: a, " + members + "}]" }
	volume := func(source string) string { return "volumes: [{name: v, " + source + "}]" }
	tests := map[string]struct {
		spec string
		want []string
	}{
		"a privileged container":          {container("securityContext: {privileged: true}"), []string{c + "securityContext.privileged"}},
		"not one that says it is not":     {container("securityContext: {privileged: false}"), nil},
		"a capability":                    {container("securityContext: {capabilities: {add: [CHOWN, SYS_ADMIN]}}"), []string{c + "securityContext.capabilities.add"}},
		"not those that runtimes give":    {container("securityContext: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}"), nil},
		"not a restricted one":            {container("securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, runAsUser: 1, runAsGroup: 1, seccompProfile: {type: RuntimeDefault}, capabilities: {drop: [ALL]}}"), nil},
		"unconfined":                      {container("securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}}"), []string{c + "securityContext.seccompProfile", c + "securityContext.appArmorProfile"}},
		"an unmasked /proc":               {container("securityContext: {procMount: Unmasked}"), []string{c + "securityContext.procMount"}},
		"SELinux options":                 {container("securityContext: {seLinuxOptions: {user: root, type: spc_t}}"), []string{c + "securityContext.seLinuxOptions.user", c + "securityContext.seLinuxOptions.type"}},
		"a process of the Windows host":   {container("securityContext: {windowsOptions: {hostProcess: true, runAsUserName: me}}"), []string{c + "securityContext.windowsOptions.hostProcess"}},
		"an unknown security context":     {container("securityContext: {hostEverything: {deep: true}}"), []string{c + "securityContext.hostEverything"}},
		"a port of the host":              {container("ports: [{containerPort: 80}, {containerPort: 81, hostPort: 81}]"), []string{c + "ports[1].hostPort"}},
		"a probe of another host":         {container("livenessProbe: {httpGet: {host: example.com, port: 80}}, readinessProbe: {tcpSocket: {port: 80}}"), []string{c + "livenessProbe.httpGet.host"}},
		"a hook that calls another host":  {container("lifecycle: {preStop: {httpGet: {host: example.com, port: 80}}}"), []string{c + "lifecycle.preStop.httpGet.host"}},
		"a variable from a Secret":        {container("env: [{name: A, value: b}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}]"), []string{c + "env[1].valueFrom.secretKeyRef"}},
		"not one from elsewhere":          {container("env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: B, valueFrom: {configMapKeyRef: {name: c, key: k}}}]"), nil},
		"an unknown source":               {container("env: [{name: A, valueFrom: {inventedRef: {name: s}}}]"), []string{c + "env[0].valueFrom.inventedRef"}},
		"all variables of a Secret":       {container("envFrom: [{configMapRef: {name: c}, prefix: P}, {secretRef: {name: s}}]"), []string{c + "envFrom[1].secretRef"}},
		"init containers":                 {"initContainers: [{name: i, image: a, securityContext: {privileged: true}}]", []string{"spec.initContainers[0].securityContext.privileged"}},
		"a path of the host":              {volume("hostPath: {path: /var/log}"), []string{"spec.volumes[0].hostPath"}},
		"a Secret":                        {volume("secret: {secretName: s}"), []string{"spec.volumes[0].secret"}},
		"a projected Secret":              {volume("projected: {sources: [{configMap: {name: c}}, {secret: {name: s}}]}"), []string{"spec.volumes[0].projected.sources[1].secret"}},
		"a driver that is given a Secret": {volume("csi: {driver: d, nodePublishSecretRef: {name: s}}"), []string{"spec.volumes[0].csi.nodePublishSecretRef"}},
		"an unknown kind of volume":       {volume("invented: {}"), []string{"spec.volumes[0].invented"}},
		"mounts of the Pod":               {container("shareVolumePolicy: {type: enabled}, shareVolumeDevicePolicy: {type: disabled}"), []string{c + "shareVolumePolicy"}},
		"devices of the Pod":              {container("shareVolumePolicy: {type: disabled}, shareVolumeDevicePolicy: {type: enabled}"), []string{c + "shareVolumeDevicePolicy"}},
		"variables of the Pod":            {container("transferEnv: [{sourceContainerName: app, envName: PASSWORD}]"), []string{c + "transferEnv"}},
		"a volume that may be the Pod's":  {container("volumeMounts: [{name: tls, mountPath: /a}], volumeDevices: [{name: disk, devicePath: /b}]") + "\nvolumes: [{name: tls, emptyDir: {}}]", []string{c + "volumeMounts[0].name", c + "volumeDevices[0].name"}},
		"AppArmor of the app's container": {"patchPodMetadata: [{annotations: {a: unconfined, container.apparmor.security.beta.kubernetes.io/app: unconfined, container.apparmor.security.beta.kubernetes.io/b: runtime/default}}]",
			[]string{"spec.patchPodMetadata[0].annotations[container.apparmor.security.beta.kubernetes.io/app]"}},
		"not what every Pod may have": {"volumes: [{name: a, emptyDir: {}}, {name: b, configMap: {name: c}}, {name: c, persistentVolumeClaim: {claimName: c}}, {name: d, downwardAPI: {items: []}}, {name: e}]", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, _ := decode(t, tc.spec)
			if diff := cmp.Diff(tc.want, requester.Uses(object)); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("not a volume that takes the place of the Pod's", func(t *testing.T) {
		object, _ := decode(t, container("volumeMounts: [{name: v, mountPath: /a}]"))
		object["metadata"].(map[string]any)["annotations"] = map[string]any{"sidecarset.io/enforce": "true"}
		if uses := requester.Uses(object); len(uses) > 0 {
			t.Errorf("fields %q", uses)
		}
	})
}
