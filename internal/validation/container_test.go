package validation_test

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/internal/validation"
)

// Rule 34: values that no Pod may have. Each case is one member of a container, or one volume;
// the rest is valid.
func TestRule34RefusesContainers(t *testing.T) {
	const at = "spec.containers[0]."
	volumes := `volumes: [{name: v}, {name: w, persistentVolumeClaim: {claimName: c}}, {name: x, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]`
	tests := map[string]struct {
		container string
		want      []string // below the container
	}{
		"R10: rules of a restart":               {`restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]`, []string{"restartPolicy: Required: restartPolicyRules need a restartPolicy of the container"}},
		"R10: a user of Windows":                {`securityContext: {windowsOptions: {runAsUserName: ""}}`, []string{"securityContext.windowsOptions.runAsUserName: Invalid: must not be empty"}},
		"R10: users that Windows has not":       {`securityContext: {windowsOptions: {runAsUserName: 'a\b\c', gmsaCredentialSpec: "", gmsaCredentialSpecName: A}}`, []string{"securityContext.windowsOptions.gmsaCredentialSpecName: Invalid", "securityContext.windowsOptions.gmsaCredentialSpec: Invalid: must have 1 to 65536 bytes", "securityContext.windowsOptions.runAsUserName: Invalid: must have a user without any of"}},
		"R10: a file in another kind of volume": {`volumeMounts: [{name: w, mountPath: /w}], env: [{name: a, valueFrom: {fileKeyRef: {volumeName: w, path: x, key: a}}}]`, []string{"env[0].valueFrom.fileKeyRef.volumeName: Invalid: is not an emptyDir volume"}},
		"ports without number":                  {`ports: [{name: web}]`, []string{"ports[0].containerPort: Required: say which port"}},
		"ports with bad numbers":                {`ports: [{containerPort: 70000, hostPort: -1}]`, []string{"ports[0].containerPort: Invalid: must be between 1 and 65535", "ports[0].hostPort: Invalid: must be between 1 and 65535"}},
		"a port's name":                         {`ports: [{containerPort: 1, name: Web}, {containerPort: 1, name: a-name-of-too-many-characters}]`, []string{"ports[0].name: Invalid: must contain only alpha-numeric characters", "ports[1].name: Invalid: must be no more than 15 characters"}},
		"two ports of one name":                 {`ports: [{containerPort: 1, name: web}, {containerPort: 2, name: web}]`, []string{"ports[1].name: Duplicate: another port of this container has this name; rename one"}},
		"two ports of one port of a node":       {`ports: [{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9, protocol: TCP}]`, []string{"ports[1].hostPort: Duplicate: another port of this container has this port of the node; remove one"}},
		"a protocol":                            {`ports: [{containerPort: 1, protocol: QUIC}]`, []string{`ports[0].protocol: NotSupported: supported values: "TCP", "UDP", "SCTP"`}},
		"a variable without a name":             {`env: [{value: x}]`, []string{"env[0].name: Required: name the variable"}},
		"a variable's name":                     {`env: [{name: "a=b"}]`, []string{"env[0].name: Invalid: a valid environment variable name"}},
		"a value and a source":                  {`env: [{name: a, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]`, []string{"env[0].valueFrom: Invalid: must not be set together with value; remove one of them"}},
		"no source":                             {`env: [{name: a, valueFrom: {}}]`, []string{"env[0].valueFrom: Required: set one of fieldRef, resourceFieldRef"}},
		"two sources":                           {`env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.name}, secretKeyRef: {name: s, key: k}}}]`, []string{"env[0].valueFrom.secretKeyRef: Forbidden: must not be set together with fieldRef; remove one of them"}},
		"a field without path":                  {`env: [{name: a, valueFrom: {fieldRef: {}}}]`, []string{"env[0].valueFrom.fieldRef.fieldPath: Required: name a field of the Pod"}},
		"a field that cannot be shown":          {`env: [{name: a, valueFrom: {fieldRef: {fieldPath: status.phase}}}]`, []string{`env[0].valueFrom.fieldRef.fieldPath: NotSupported: supported values: "metadata.name"`}},
		"all labels in a variable":              {`env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]`, []string{"env[0].valueFrom.fieldRef.fieldPath: NotSupported"}},
		"a label's key":                         {`env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a b']"}}}]`, []string{"env[0].valueFrom.fieldRef.fieldPath: Invalid: name part must consist of"}},
		"a field that has no keys":              {`env: [{name: a, valueFrom: {fieldRef: {fieldPath: "spec.x['a']"}}}]`, []string{"env[0].valueFrom.fieldRef.fieldPath: Invalid: only metadata.labels and metadata.annotations have keys"}},
		"a field of another version":            {`env: [{name: a, valueFrom: {fieldRef: {apiVersion: v2, fieldPath: metadata.name}}}]`, []string{"env[0].valueFrom.fieldRef.apiVersion: Invalid: must be v1"}},
		"a resource":                            {`env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}]`, []string{`env[0].valueFrom.resourceFieldRef.resource: NotSupported: supported values: "limits.cpu"`}},
		"no resource":                           {`env: [{name: a, valueFrom: {resourceFieldRef: {}}}]`, []string{"env[0].valueFrom.resourceFieldRef.resource: Required"}},
		"a divisor":                             {`env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1Mi}}}, {name: b, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1m}}}]`, []string{"env[0].valueFrom.resourceFieldRef.divisor: Invalid: must be 1 or, for cpu, 1m", "env[1].valueFrom.resourceFieldRef.divisor: Invalid"}},
		"a key of a Secret":                     {`env: [{name: a, valueFrom: {secretKeyRef: {}}}, {name: b, valueFrom: {configMapKeyRef: {name: A_, key: "a b"}}}]`, []string{"env[0].valueFrom.secretKeyRef.name: Required: name the Secret", "env[0].valueFrom.secretKeyRef.key: Required: name a key of the Secret", "env[1].valueFrom.configMapKeyRef.name: Invalid: a lowercase RFC 1123 subdomain", "env[1].valueFrom.configMapKeyRef.key: Invalid: a valid config key"}},
		"a file's key":                          {`env: [{name: a, valueFrom: {fileKeyRef: {volumeName: V, path: ../x, key: ""}}}]`, []string{"env[0].valueFrom.fileKeyRef.volumeName: Invalid", "env[0].valueFrom.fileKeyRef.path: Invalid: must not contain '..'", "env[0].valueFrom.fileKeyRef.key: Required", "env[0].valueFrom.fileKeyRef.volumeName: Invalid: is not a volume of this SidecarSet"}},
		"envFrom nothing":                       {`envFrom: [{}]`, []string{"envFrom[0]: Required: set one of configMapRef, secretRef"}},
		"envFrom two, without names":            {`envFrom: [{prefix: "a=", configMapRef: {}, secretRef: {}}]`, []string{"envFrom[0].prefix: Invalid", "envFrom[0].secretRef: Forbidden: must not be set together with configMapRef", "envFrom[0].configMapRef.name: Required: name the ConfigMap", "envFrom[0].secretRef.name: Required: name the Secret"}},
		"a negative quantity":                   {`resources: {limits: {cpu: -1}}`, []string{"resources.limits[cpu]: Invalid: must be 0 or more"}},
		"a request above its limit":             {`resources: {limits: {cpu: 1}, requests: {cpu: 2}}`, []string{"resources.requests[cpu]: Invalid: must be less than or equal to the limit of 1; change one of them"}},
		"a resource that is none":               {`resources: {requests: {gpu: 1, "a b": 1, requests.example.com/x: 1}, limits: {requests.example.com/x: 1}}`, []string{"resources.limits[requests.example.com/x]: Invalid: is not the name of an extended resource", "resources.requests[a b]: Invalid: name part must consist of", "resources.requests[gpu]: Invalid: is not a resource of containers; use cpu", "resources.requests[requests.example.com/x]: Invalid"}},
		"a device without limit":                {`resources: {requests: {example.com/gpu: 1}}`, []string{"resources.limits[example.com/gpu]: Required: this resource cannot be overcommitted; set a limit"}},
		"a device with a lower request":         {`resources: {requests: {example.com/gpu: 1}, limits: {example.com/gpu: 2}}`, []string{"resources.requests[example.com/gpu]: Invalid: must be equal to the limit of 2"}},
		"half a device":                         {`resources: {limits: {example.com/gpu: 0.5}}`, []string{"resources.limits[example.com/gpu]: Invalid: must be a whole number of devices"}},
		"huge pages alone":                      {`resources: {limits: {hugepages-2Mi: 2Mi}}`, []string{"resources: Forbidden: huge pages need cpu or memory beside them; add one"}},
		"half a huge page":                      {`resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi}}`, []string{"resources.limits[hugepages-2Mi]: Invalid: must be a multiple of the page's size"}},
		"huge pages of no size":                 {`resources: {limits: {cpu: 1, hugepages-x: 1}}`, []string{"resources.limits[hugepages-x]: Invalid: must be a multiple of the page's size"}},
		"9.2: claims":                           {`resources: {claims: [{}, {name: gpu, request: A}, {name: gpu}, {name: nic}, {name: nic, request: a}]}`, []string{"resources.claims[0].name: Required", "resources.claims[1].request: Invalid", "resources.claims[2]: Duplicate: another element has this claim", "resources.claims[4]: Duplicate"}},
		"a resizePolicy":                        {`resizePolicy: [{resourceName: cpu, restartPolicy: Never}, {resourceName: cpu, restartPolicy: NotRequired}, {}, {resourceName: gpu, restartPolicy: NotRequired}]`, []string{"resizePolicy[0].restartPolicy: NotSupported", "resizePolicy[1].resourceName: Duplicate: this resource has a policy already", "resizePolicy[2].resourceName: Required", "resizePolicy[2].restartPolicy: Required", "resizePolicy[3].resourceName: NotSupported"}},
		"restartPolicy":                         {`restartPolicy: Sometimes`, []string{`restartPolicy: NotSupported: supported values: "Always", "OnFailure", "Never"`}},
		"a mount without path":                  {`volumeMounts: [{name: v}]`, []string{"volumeMounts[0].mountPath: Required: say where"}},
		"two mounts at one path":                {`volumeMounts: [{name: v, mountPath: /a}, {name: w, mountPath: /a}]`, []string{"volumeMounts[1].mountPath: Invalid: must be unique in the container"}},
		"a subPath that leaves the volume":      {`volumeMounts: [{name: v, mountPath: /a, subPath: a/../b}, {name: v, mountPath: /b, subPathExpr: /$(A)}]`, []string{"volumeMounts[0].subPath: Invalid: must not contain '..'", "volumeMounts[1].subPathExpr: Invalid: must be relative"}},
		"subPath and subPathExpr":               {`volumeMounts: [{name: v, mountPath: /a, subPath: a, subPathExpr: b}]`, []string{"volumeMounts[0].subPathExpr: Invalid: must not be set together with subPath; remove one of them"}},
		"a mountPropagation":                    {`volumeMounts: [{name: v, mountPath: /a, mountPropagation: Both}, {name: v, mountPath: /b, mountPropagation: Bidirectional}]`, []string{"volumeMounts[0].mountPropagation: NotSupported", "volumeMounts[1].mountPropagation: Forbidden: Bidirectional is for privileged containers"}},
		"recursiveReadOnly":                     {`volumeMounts: [{name: v, mountPath: /a, recursiveReadOnly: Maybe, readOnly: true}, {name: v, mountPath: /b, recursiveReadOnly: Enabled}]`, []string{"volumeMounts[0].recursiveReadOnly: NotSupported", "volumeMounts[1].recursiveReadOnly: Forbidden: needs readOnly true"}},
		"a device that is none":                 {`volumeDevices: [{name: v, devicePath: /d}]`, []string{"volumeDevices[0].name: Invalid: is not a block device"}},
		"a device without path":                 {`volumeDevices: [{name: w}]`, []string{"volumeDevices[0].devicePath: Required"}},
		"one device twice":                      {`volumeDevices: [{name: w, devicePath: /d}, {name: w, devicePath: /d}]`, []string{"volumeDevices[1].name: Invalid: must be unique", "volumeDevices[1].devicePath: Invalid: must be unique"}},
		"a device outside":                      {`volumeDevices: [{name: w, devicePath: /d/../e}]`, []string{"volumeDevices[0].devicePath: Invalid: must not contain '..'"}},
		"a device that is mounted":              {`{volumeMounts: [{name: w, mountPath: /d}], volumeDevices: [{name: w, devicePath: /d}]}`, []string{"volumeDevices[0].name: Invalid: is mounted in volumeMounts too", "volumeDevices[0].devicePath: Invalid: is the path of a mount too"}},
		"a probe without handler":               {`livenessProbe: {}`, []string{"livenessProbe: Required: set one of exec, httpGet, tcpSocket, grpc"}},
		"a probe with two handlers":             {`readinessProbe: {exec: {command: [x]}, grpc: {port: 1}}`, []string{"readinessProbe.grpc: Forbidden: must not be set together with exec"}},
		"a probe of no port":                    {`startupProbe: {httpGet: {scheme: FTP, httpHeaders: [{name: "a b"}]}}`, []string{"startupProbe.httpGet.port: Invalid: must be between 1 and 65535", `startupProbe.httpGet.scheme: NotSupported: supported values: "HTTP", "HTTPS"`, "startupProbe.httpGet.httpHeaders[0].name: Invalid: a valid HTTP header"}},
		"a probe of a port's name":              {`startupProbe: {tcpSocket: {port: a_b}}`, []string{"startupProbe.tcpSocket.port: Invalid: must contain only alpha-numeric characters"}},
		"a probe without command":               {`livenessProbe: {exec: {}}`, []string{"livenessProbe.exec.command: Required: give the command"}},
		"a probe of no grpc port":               {`livenessProbe: {grpc: {port: 0}}`, []string{"livenessProbe.grpc.port: Invalid"}},
		"two successes":                         {`{livenessProbe: {exec: {command: [x]}, successThreshold: 2}, startupProbe: {exec: {command: [x]}, successThreshold: 2}}`, []string{"livenessProbe.successThreshold: Invalid: must be 1", "startupProbe.successThreshold: Invalid: must be 1"}},
		"negative numbers in a probe":           {`readinessProbe: {exec: {command: [x]}, initialDelaySeconds: -1, timeoutSeconds: -1, periodSeconds: -1, successThreshold: -1, failureThreshold: -1}`, []string{"readinessProbe.initialDelaySeconds: Invalid", "readinessProbe.timeoutSeconds: Invalid", "readinessProbe.periodSeconds: Invalid", "readinessProbe.successThreshold: Invalid", "readinessProbe.failureThreshold: Invalid"}},
		"a grace period":                        {`{livenessProbe: {exec: {command: [x]}, terminationGracePeriodSeconds: 0}, readinessProbe: {exec: {command: [x]}, terminationGracePeriodSeconds: 1}}`, []string{"livenessProbe.terminationGracePeriodSeconds: Invalid: must be greater than 0", "readinessProbe.terminationGracePeriodSeconds: Invalid: a readiness probe ends no container"}},
		"a hook without handler":                {`lifecycle: {postStart: {}, preStop: {sleep: {seconds: -1}}}`, []string{"lifecycle.postStart: Required: set one of exec, httpGet, tcpSocket, sleep", "lifecycle.preStop.sleep.seconds: Invalid: must be 0 or more"}},
		"a terminationMessagePolicy":            {`terminationMessagePolicy: Stdout`, []string{`terminationMessagePolicy: NotSupported: supported values: "File", "FallbackToLogsOnError"`}},
		"an imagePullPolicy":                    {`imagePullPolicy: Sometimes`, []string{`imagePullPolicy: NotSupported: supported values: "Always", "IfNotPresent", "Never"`}},
		"users":                                 {`securityContext: {runAsUser: -1, runAsGroup: -1}`, []string{"securityContext.runAsUser: Invalid: must be between 0 and", "securityContext.runAsGroup: Invalid: must be between 0 and"}},
		"privileges":                            {`securityContext: {privileged: true, allowPrivilegeEscalation: false, capabilities: {add: [CAP_SYS_ADMIN]}}`, []string{"securityContext.allowPrivilegeEscalation: Invalid: may not be false for a privileged container", "securityContext.allowPrivilegeEscalation: Invalid: may not be false with capability CAP_SYS_ADMIN"}},
		"profiles":                              {`securityContext: {procMount: None, seccompProfile: {type: Localhost}, appArmorProfile: {type: RuntimeDefault, localhostProfile: x}}`, []string{"securityContext.procMount: NotSupported", "securityContext.seccompProfile.localhostProfile: Required", "securityContext.appArmorProfile.localhostProfile: Invalid: is for type Localhost only"}},
		"profiles without type":                 {`securityContext: {seccompProfile: {}, appArmorProfile: {}}`, []string{"securityContext.seccompProfile.type: Required: use Localhost, RuntimeDefault or Unconfined", "securityContext.appArmorProfile.type: Required"}},
		"names of profiles":                     {`securityContext: {seccompProfile: {type: Localhost, localhostProfile: /x}, appArmorProfile: {type: Localhost, localhostProfile: " x"}}`, []string{"securityContext.seccompProfile.localhostProfile: Invalid: must be relative", "securityContext.appArmorProfile.localhostProfile: Invalid: must be the name of a profile"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			member := strings.TrimSuffix(strings.TrimPrefix(tc.container, "{"), "}")
			if !strings.HasPrefix(tc.container, "{") {
				member = tc.container
			}
			set := validationCase{spec: `{containers: [{name: a, image: b, ` + member + `}], ` + volumes + `}`}.set(t)
			var want []string
			for _, line := range tc.want {
				want = append(want, at+line)
			}
			expect(t, want, validation.Create(set, validation.Environment{}))
		})
	}
}

func TestRule34RefusesInitContainers(t *testing.T) {
	tests := map[string]validationCase{
		"probes and hooks of one that ends": {spec: `initContainers: [{name: i, image: b, livenessProbe: {exec: {command: [x]}}, readinessProbe: {exec: {command: [x]}}, startupProbe: {exec: {command: [x]}}, lifecycle: {}}]`, want: []string{
			"spec.initContainers[0].livenessProbe: Forbidden: an init container that ends has none; remove it, or set restartPolicy Always",
			"spec.initContainers[0].readinessProbe: Forbidden", "spec.initContainers[0].startupProbe: Forbidden", "spec.initContainers[0].lifecycle: Forbidden"}},
		"R10: rules of a restart without restartPolicy": {spec: `initContainers: [{name: i, image: b, restartPolicyRules: [{}]}]`, want: []string{"spec.initContainers[0].restartPolicy: Required: restartPolicyRules need a restartPolicy of the container", "spec.initContainers[0].restartPolicyRules[0].action: Required"}},
		"R10: rules of a restart that are none": {spec: `initContainers: [{name: i, image: b, restartPolicy: Always, restartPolicyRules: [{}, {action: Go, exitCodes: {}}]}]`, want: []string{
			"spec.initContainers[0].restartPolicyRules[0].action: Required", "spec.initContainers[0].restartPolicyRules[0].exitCodes: Required",
			"spec.initContainers[0].restartPolicyRules[1].action: NotSupported", "spec.initContainers[0].restartPolicyRules[1].exitCodes.operator: Required"}},
		"another restartPolicy":                       {spec: `initContainers: [{name: i, image: b, restartPolicy: Once}]`, want: []string{"spec.initContainers[0].restartPolicy: NotSupported"}},
		"a restart on resize of one that ends":        {spec: `initContainers: [{name: i, image: b, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}]`, want: []string{"spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid: an init container that ends is not restarted"}},
		"probes of a native sidecar":                  {spec: `initContainers: [{name: i, image: b, restartPolicy: Always, livenessProbe: {}}]`, want: []string{"spec.initContainers[0].livenessProbe: Required"}},
		"rule 27: resourcesPolicy of one that ends":   {spec: `initContainers: [{name: i, image: b, resourcesPolicy: {targetContainersMode: sum}}]`, want: []string{"spec.initContainers[0].resourcesPolicy: Invalid: only an init container with restartPolicy Always may have it; remove it, and set resources"}},
		"two containers want one port of the node":    {spec: `containers: [{name: a, image: b, ports: [{containerPort: 1, hostPort: 9}]}, {name: c, image: b, ports: [{containerPort: 1}, {containerPort: 1, hostPort: 9}]}]`, want: []string{"spec.containers[1].ports[1].hostPort: Duplicate: another container of this SidecarSet has this port of the node"}},
		"rule 33: a resourcesPolicy beside resources": {spec: `containers: [{name: a, image: b, resources: {limits: {cpu: 1}}, resourcesPolicy: {targetContainersMode: sum}}]`, want: []string{"spec.containers[0].resourcesPolicy: Invalid: cannot be combined with resources"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			errs := validation.Create(tc.set(t), validation.Environment{})
			expect(t, tc.want, errs[:min(len(errs), len(tc.want))])
		})
	}
}

func TestRule34RefusesVolumes(t *testing.T) {
	const at = "spec.volumes[0]."
	tests := map[string]struct {
		volume string
		want   []string
	}{
		"R10: quobyte":                {`quobyte: {}`, []string{"quobyte.registry: Required: name the registries", "quobyte.volume: Required"}},
		"R10: quobyte's registry":     {`quobyte: {registry: "a:1,b", volume: v}`, []string{"quobyte.registry: Invalid: must be host:port"}},
		"R10: storageos":              {`storageos: {volumeNamespace: Ns, secretRef: {}}`, []string{"storageos.volumeName: Required", "storageos.volumeNamespace: Invalid", "storageos.secretRef.name: Required"}},
		"R10: flocker":                {`flocker: {}`, []string{"flocker: Required: set one of datasetName, datasetUUID"}},
		"R10: partitions":             {`gcePersistentDisk: {pdName: d, partition: 256}`, []string{"gcePersistentDisk.partition: Invalid: must be from 0 to 255"}},
		"R10: options of the kubelet": {`flexVolume: {driver: d, options: {a.k8s.io/x: z}}`, []string{"flexVolume.options[a.k8s.io/x]: Invalid: options of kubernetes.io and k8s.io are the kubelet's"}},
		"R10: an initiator":           {`iscsi: {targetPortal: a, iqn: "iqn.2001-04.com.example:x", initiatorName: x}`, []string{"iscsi.initiatorName: Invalid: must be an iSCSI name"}},
		"R10: a claim with a name": {`ephemeral: {volumeClaimTemplate: {metadata: {name: x}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, dataSource: {kind: X, name: other}, selector: {matchExpressions: [{key: a, operator: Like}]}}}}`, []string{
			"ephemeral.volumeClaimTemplate.metadata.name: Forbidden: a template has labels and annotations only", "ephemeral.volumeClaimTemplate.spec.selector.matchExpressions[0].operator: Invalid", "ephemeral.volumeClaimTemplate.spec.dataSource.kind: Invalid: must be PersistentVolumeClaim"}},
		"R10: a certificate for too long": {`projected: {sources: [{podCertificate: {signerName: kubernetes.io/a, keyType: ED25519, keyPath: k, maxExpirationSeconds: 86401, userAnnotations: {k: v}}}]}`, []string{"projected.sources[0].podCertificate.maxExpirationSeconds: Invalid: must be from 3600 (one hour) to 86400", "projected.sources[0].podCertificate.userAnnotations[k]: Invalid: must be a domain and a name"}},
		"two sources":                     {`emptyDir: {}, hostPath: {path: /x}`, []string{"hostPath: Forbidden: must not be set together with emptyDir; remove one of them"}},
		"emptyDir":                        {`emptyDir: {sizeLimit: -1}`, []string{"emptyDir.sizeLimit: Invalid: must be 0 or more"}},
		"hostPath":                        {`hostPath: {path: /a/../b, type: Disk}`, []string{"hostPath.path: Invalid: must not contain '..'", "hostPath.type: NotSupported"}},
		"hostPath without path":           {`hostPath: {}`, []string{"hostPath.path: Required: the volume needs it; set it"}},
		"secret":                          {`secret: {defaultMode: 512, items: [{}, {key: k, path: ..x, mode: -1}]}`, []string{"secret.defaultMode: Invalid: must be permission bits", "secret.items[0].key: Required", "secret.items[0].path: Required", "secret.items[1].path: Invalid: must not start with '..'", "secret.items[1].mode: Invalid", "secret.secretName: Required"}},
		"configMap":                       {`configMap: {items: [{key: k, path: /x}]}`, []string{"configMap.items[0].path: Invalid: must be relative", "configMap.name: Required"}},
		"downwardAPI":                     {`downwardAPI: {items: [{path: p}, {path: q, fieldRef: {fieldPath: status.podIP}}, {path: r, resourceFieldRef: {resource: limits.cpu}}]}`, []string{"downwardAPI.items[0]: Required: set one of fieldRef, resourceFieldRef", `downwardAPI.items[1].fieldRef.fieldPath: NotSupported: supported values: "metadata.name"`, "downwardAPI.items[2].resourceFieldRef.containerName: Required"}},
		"projected":                       {`projected: {defaultMode: -1, sources: [{}, {secret: {}, configMap: {name: c}}]}`, []string{"projected.defaultMode: Invalid", "projected.sources[1].configMap: Forbidden: must not be set together with secret", "projected.sources[1].secret.name: Required"}},
		"projected paths":                 {`projected: {sources: [{secret: {name: s, items: [{key: k, path: p}]}}, {configMap: {name: s, items: [{key: k, path: p}]}}]}`, []string{"projected.sources[1]: Invalid: another source has a file of this path"}},
		"projected token":                 {`projected: {sources: [{serviceAccountToken: {expirationSeconds: 60}}]}`, []string{"projected.sources[0].serviceAccountToken.path: Required", "projected.sources[0].serviceAccountToken.expirationSeconds: Invalid: must be from 600"}},
		"projected trust bundle":          {`projected: {sources: [{clusterTrustBundle: {path: p}}, {clusterTrustBundle: {path: q, name: bundle, labelSelector: {}}}]}`, []string{"projected.sources[0].clusterTrustBundle: Required: set one of name, signerName", "projected.sources[1].clusterTrustBundle.labelSelector: Invalid"}},
		"projected names of bundles":      {`projected: {sources: [{clusterTrustBundle: {path: p, name: "example.com:s:b"}}, {clusterTrustBundle: {path: q, name: ":b"}}, {clusterTrustBundle: {path: r, name: "a:"}}, {clusterTrustBundle: {path: s, name: B_}}]}`, []string{"projected.sources[1].clusterTrustBundle.name: Invalid: must be a name such as", "projected.sources[2].clusterTrustBundle.name: Invalid", "projected.sources[3].clusterTrustBundle.name: Invalid"}},
		"projected certificate":           {`projected: {sources: [{podCertificate: {}}]}`, []string{"projected.sources[0].podCertificate.signerName: Required", "projected.sources[0].podCertificate.keyType: Required", "projected.sources[0].podCertificate.credentialBundlePath: Required"}},
		"persistentVolumeClaim":           {`persistentVolumeClaim: {}`, []string{"persistentVolumeClaim.claimName: Required"}},
		"ephemeral":                       {`ephemeral: {}`, []string{"ephemeral.volumeClaimTemplate: Required"}},
		"ephemeral claim":                 {`ephemeral: {volumeClaimTemplate: {spec: {}}}`, []string{"ephemeral.volumeClaimTemplate.spec.accessModes: Required", "ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: Required"}},
		"ephemeral claim of nothing":      {`ephemeral: {volumeClaimTemplate: {spec: {accessModes: [Once], resources: {requests: {storage: 0}}}}}`, []string{"ephemeral.volumeClaimTemplate.spec.accessModes[0]: NotSupported", "ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: Invalid"}},
		"csi":                             {`csi: {nodePublishSecretRef: {}}`, []string{"csi.nodePublishSecretRef.name: Required", "csi.driver: Required"}},
		"csi driver":                      {`csi: {driver: a_b}`, []string{"csi.driver: Invalid"}},
		"image":                           {`image: {pullPolicy: Sometimes}`, []string{"image.pullPolicy: NotSupported", "image.reference: Required"}},
		"nfs":                             {`nfs: {server: s, path: x}`, []string{"nfs.path: Invalid: must be an absolute path"}},
		"what networks need":              {`iscsi: {}`, []string{"iscsi.targetPortal: Required", "iscsi.iqn: Required"}},
		"what clouds need":                {`azureDisk: {kind: x}`, []string{"azureDisk.kind: NotSupported", "azureDisk.diskName: Required", "azureDisk.diskURI: Required"}},
		"fc":                              {`fc: {targetWWNs: [a]}`, []string{"fc.lun: Required"}},
		"a managed disk":                  {`azureDisk: {kind: Managed, diskName: d, diskURI: "https://x"}`, []string{"azureDisk.diskURI: Invalid: must begin with /subscriptions/"}},
		"a unit":                          {`iscsi: {targetPortal: a, iqn: x, lun: 256}`, []string{"iscsi.lun: Invalid: must be from 0 to 255", "iscsi.iqn: Invalid: must be an iSCSI name"}},
		"a signer":                        {`projected: {sources: [{clusterTrustBundle: {path: p, signerName: a/b}}]}`, []string{"projected.sources[0].clusterTrustBundle.signerName: Invalid: must be a domain with a dot"}},
		"a directory of a gitRepo":        {`gitRepo: {directory: ../x}`, []string{"gitRepo.directory: Invalid: must not contain '..'", "gitRepo.repository: Required"}},
		"a mode of a downwardAPI's dir":   {`downwardAPI: {defaultMode: 1000}`, []string{"downwardAPI.defaultMode: Invalid"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := validationCase{spec: `volumes: [{name: v, ` + tc.volume + `}]`}.set(t)
			var want []string
			for _, line := range tc.want {
				want = append(want, at+line)
			}
			expect(t, want, validation.Create(set, validation.Environment{}))
		})
	}
}

// Every source of a volume is known, even if it lacks members. This test fails if a later
// Kubernetes adds a source: then the table sources has to have it.
func TestEverySourceOfAVolumeIsKnown(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[corev1.VolumeSource]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		tc := validationCase{spec: "volumes: [{name: v, " + name + ": {}}]"}
		for _, err := range validation.Create(tc.set(t), validation.Environment{}) {
			if err.Field == "spec.volumes[0]" {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestRule34Accepts(t *testing.T) {
	tests := map[string]string{
		"T5: a startup probe that says little":    `containers: [{name: a, image: b, startupProbe: {httpGet: {port: web}}}]`,
		"4.4: an init container called test":      `initContainers: [{name: test, image: b}]`,
		"4.4: a relaxed name of a variable":       `containers: [{name: a, image: b, env: [{name: 1A}, {name: "a:b"}]}]`,
		"a terminal":                              `containers: [{name: a, image: b, stdin: true, stdinOnce: true, tty: true}]`,
		"fields in variables":                     `containers: [{name: a, image: b, env: [{name: "a.b-c", value: ""}, {name: B, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['X/y']"}}}, {name: C, valueFrom: {resourceFieldRef: {resource: requests.hugepages-2Mi, divisor: 1Mi}}}]}]`,
		"a limit alone":                           `containers: [{name: a, image: b, resources: {limits: {example.com/gpu: 1, cpu: 0.5}}}]`,
		"init containers that share a port":       `initContainers: [{name: i, image: b, ports: [{containerPort: 1, hostPort: 9}]}, {name: j, image: b, ports: [{containerPort: 1, hostPort: 9}]}]`,
		"one port of a node for two protocols":    `containers: [{name: a, image: b, ports: [{containerPort: 1, hostPort: 9}, {containerPort: 1, hostPort: 9, protocol: UDP}]}]`,
		"a privileged container that shares":      `{containers: [{name: a, image: b, securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]}], volumes: [{name: v}]}`,
		"a resize policy of a native sidecar":     `initContainers: [{name: i, image: b, restartPolicy: Always, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}], lifecycle: {preStop: {sleep: {seconds: 5}}}}]`,
		"a container with restarts of its own":    `containers: [{name: a, image: b, restartPolicy: OnFailure, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]}, {name: c, image: b, restartPolicy: Never}]`,
		"an init container with restarts of its":  `initContainers: [{name: i, image: b, restartPolicy: OnFailure}, {name: j, image: b, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}]}]`,
		"what Pods with other fields have":        `containers: [{name: a, image: b, resources: {claims: [{name: gpu, request: a}, {name: gpu, request: b}]}, lifecycle: {preStop: {sleep: {seconds: 45}}}, securityContext: {windowsOptions: {hostProcess: true}}}]`,
		"a file by an absolute path":              `{containers: [{name: a, image: b, env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: /x, key: k}}}], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v}]}`,
		"one access mode twice":                   `volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOncePod, ReadWriteOncePod], resources: {requests: {storage: 1Gi}}}}}}]`,
		"files":                                   `volumes: [{name: v, projected: {sources: [{downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}, {serviceAccountToken: {path: t}}]}}]`,
		"all readiness probes have":               `containers: [{name: a, image: b, readinessProbe: {grpc: {port: 1, service: x}, successThreshold: 3}}]`,
		"a volume's source that we know nothing":  `volumes: [{name: v, novel: {}}]`,
		"a device of a source that we know not":   `{containers: [{name: a, image: b, volumeDevices: [{name: v, devicePath: /d}]}], volumes: [{name: v, novel: {}}]}`,
		"a probe's handler that we know nothing":  `containers: [{name: a, image: b, livenessProbe: {novel: {}}}]`,
		"a hook's handler that we know nothing":   `containers: [{name: a, image: b, lifecycle: {preStop: {novel: {}}}}]`,
		"a variable's source that we know not":    `containers: [{name: a, image: b, env: [{name: A, valueFrom: {novel: {}}}], envFrom: [{novel: {}}]}]`,
		"a projected source that we know nothing": `volumes: [{name: v, projected: {sources: [{novel: {}}]}}]`,
	}
	for name, spec := range tests {
		t.Run(name, func(t *testing.T) {
			tc := validationCase{spec: spec}
			expect(t, nil, validation.Create(tc.set(t), validation.Environment{Object: tc.object(t)}))
		})
	}
}
