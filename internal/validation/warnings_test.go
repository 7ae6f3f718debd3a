package validation_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/validation"
)

func TestWarnings(t *testing.T) {
	const excluded = "spec.namespaceSelector: names kube-system, whose Pods are never injected; the operator's administrator can change the excluded namespaces"
	const pairProbe = "HotUpgrade probes both containers at the same port of the Pod, so that one of them can answer for the other, and a hot upgrade goes on before the new one serves; use exec"
	tests := map[string]struct {
		spec string
		want []string
	}{
		"every namespace":               {``, nil},
		"another namespace":             {`namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: web}}`, nil},
		"kube-system":                   {`namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}`, []string{excluded}},
		"kube-system among others":      {`namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [web, kube-system]}]}`, []string{excluded}},
		"every namespace but this one":  {`namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}]}`, nil},
		"a selector against itself":     {`selector: {matchLabels: {app: web}, matchExpressions: [{key: app, operator: DoesNotExist}]}`, []string{"spec.selector: no Pod can be selected, because what it asks of label app contradicts itself; correct it"}},
		"another label with that value": {`namespaceSelector: {matchLabels: {name: kube-system}}`, nil},

		"4.8: an unknown upgradeType":                    {`containers: [{name: a, image: b, upgradeStrategy: {upgradeType: Warm}}]`, []string{`spec.containers[0].upgradeStrategy.upgradeType: "Warm" is unknown and means ColdUpgrade; use ColdUpgrade or HotUpgrade`}},
		"4.8: an unknown shareVolumeDevicePolicy":        {`containers: [{name: a, image: b, shareVolumeDevicePolicy: {type: "on"}}]`, []string{`spec.containers[0].shareVolumeDevicePolicy.type: "on" is unknown and means disabled; use enabled or disabled`}},
		"4.8: an unknown updateStrategy.type":            {`updateStrategy: {type: Later}`, []string{`spec.updateStrategy.type: "Later" is unknown and updates no running Pod; use RollingUpdate or NotUpdate`}},
		"4.8: policies of an init container":             {`initContainers: [{name: i, image: b, podInjectPolicy: First, shareVolumePolicy: {type: "on"}}]`, []string{`spec.initContainers[0].podInjectPolicy: "First" is unknown and means AfterAppContainer; use BeforeAppContainer or AfterAppContainer`, `spec.initContainers[0].shareVolumePolicy.type: "on" is unknown and means disabled; use enabled or disabled`}},
		"4.8: transferEnv of an init container":          {`initContainers: [{name: i, image: b, transferEnv: [{envName: A, sourceContainerNameFrom: {fieldRef: {fieldPath: metadata.name}}}]}]`, []string{`spec.initContainers[0].transferEnv[0].sourceContainerNameFrom.fieldRef.fieldPath: Invalid value: "metadata.name": error converting fieldPath: only metadata.labels['<key>'] and metadata.annotations['<key>'] can name a container; correct it`}},
		"4.8: empty entries of transferEnv":              {`containers: [{name: a, image: b, transferEnv: [{}, {sourceContainerName: c}, {sourceContainerName: c, envNames: [A]}]}]`, []string{"spec.containers[0].transferEnv[0]: names no container to copy from, so that nothing is copied; set sourceContainerName or sourceContainerNameFrom.fieldRef", "spec.containers[0].transferEnv[1]: names no variable, so that nothing is copied; set envName or envNames"}},
		"4.8: a negative revisionHistoryLimit":           {`revisionHistoryLimit: -1`, []string{"spec.revisionHistoryLimit: is -1 and means 1: none but the current revision is kept; use 1 or more"}},
		"4.8: a pull secret without name":                {`imagePullSecrets: [{name: a}, {}]`, []string{"spec.imagePullSecrets[1].name: is empty, which adds no Secret; name one or remove the entry"}},
		"4.8: HotUpgrade of an init container that ends": {`initContainers: [{name: i, image: b, upgradeStrategy: {upgradeType: HotUpgrade}}]`, []string{"spec.initContainers[0].upgradeStrategy.upgradeType: HotUpgrade has no effect on an init container that ends; remove it or set restartPolicy Always"}},
		"rule 19: nothing may be unavailable":            {`updateStrategy: {type: RollingUpdate, maxUnavailable: 0}`, []string{"spec.updateStrategy.maxUnavailable: is 0, so that no Pod is ever updated; use 1 or more"}},
		"rule 19: a percentage above 100":                {`updateStrategy: {type: RollingUpdate, partition: 101%}`, []string{"spec.updateStrategy.partition: is more than 100%, which means 100%: no Pod is updated; use 0% to 100%"}},
		"T18: Partial without a percentage":              {`{injectionStrategy: {revision: {customVersion: v, policy: Partial}}}`, []string{"spec.injectionStrategy.revision.policy: Partial needs updateStrategy.partition as a percentage, otherwise every Pod that updateStrategy.selector matches gets the current revision; set it, for example 50%"}},
		"Partial by a share that is none":                {`{updateStrategy: {type: NotUpdate, partition: "50"}, injectionStrategy: {revision: {customVersion: v, policy: Partial}}}`, []string{`spec.updateStrategy.partition: "50" is neither a number nor a percentage, so that Partial refuses Pods; correct it, for example 50%`}},
		"Partial by a share without bounds":              {`{updateStrategy: {type: NotUpdate, partition: 99999999999999999999%}, injectionStrategy: {revision: {customVersion: v, policy: Partial}}}`, []string{`spec.updateStrategy.partition: "99999999999999999999%" is neither a number nor a percentage, so that Partial refuses Pods; correct it, for example 50%`}},
		"Partial by a selector that is none":             {`{updateStrategy: {type: NotUpdate, partition: 50%, selector: {matchExpressions: [{key: a, operator: Is}]}}, injectionStrategy: {revision: {customVersion: v, policy: Partial}}}`, []string{`spec.updateStrategy.selector: cannot be compiled, so that Partial refuses all Pods; correct it: "Is" is not a valid label selector operator`}},
		"Always needs neither":                           {`{updateStrategy: {type: NotUpdate, partition: "50"}, injectionStrategy: {revision: {customVersion: v}}}`, nil},
		"T18: Always beside a selector":                  {`{updateStrategy: {type: NotUpdate, selector: {matchLabels: {a: b}}}, injectionStrategy: {revision: {customVersion: v}}}`, []string{"spec.injectionStrategy.revision.policy: Always ignores updateStrategy.selector; use Partial to inject the current revision into the Pods that it matches"}},
		"T26: a variable of ours":                        {`containers: [{name: a, image: b, env: [{name: IS_INJECTED, value: "false"}]}]`, []string{"spec.containers[0].env[0]: IS_INJECTED is set to true by the operator; remove it"}},
		"T30: a customVersion that is no label":          {`customVersion: "a b"`, []string{"spec.customVersion: cannot be a label's value, so that no revision carries it, and clients of v1alpha1 neither see nor keep it; use up to 63 letters, digits, '-', '_' and '.'"}},
		"T31: an unknown patchPolicy":                    {`patchPodMetadata: [{patchPolicy: Ask, annotations: {a: b}}]`, []string{`spec.patchPodMetadata[0].patchPolicy: "Ask" is unknown, so that the entry is ignored; use Retain, Overwrite or MergePatchJson`}},
		"T31: a merge patch that is no JSON":             {`patchPodMetadata: [{patchPolicy: MergePatchJson, annotations: {a: "{", b: "{}"}}]`, []string{"spec.patchPodMetadata[0].annotations[a]: is not JSON, so a Pod that has this annotation is refused; correct it or use another patchPolicy"}},
		"9.9: mounts are shared, as everywhere":          {`containers: [{name: a, image: b, shareVolumePolicy: {type: enabled}}]`, nil},
		"9.9: mounts are shared where mounts propagate":  {`{containers: [{name: a, image: b, shareVolumePolicy: {type: enabled}, volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]}], volumes: [{name: v, hostPath: {path: /v}}]}`, []string{"spec.containers[0].shareVolumePolicy: a Pod that mounts with mountPropagation Bidirectional is refused, since this sidecar is not privileged; do not select such Pods"}},
		"9.9: mounts are shared beside one that mounts":  {`{containers: [{name: a, image: b, shareVolumePolicy: {type: enabled}}, {name: c, image: b, securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]}], volumes: [{name: v, hostPath: {path: /v}}]}`, []string{"spec.containers[0].shareVolumePolicy: a Pod that mounts with mountPropagation Bidirectional is refused, since this sidecar is not privileged; do not select such Pods"}},
		"9.9: mounts are shared with privileges":         {`containers: [{name: a, image: b, shareVolumePolicy: {type: enabled}, securityContext: {privileged: true}}]`, nil},
		"a native sidecar before the app, as asked":      {`initContainers: [{name: i, image: b, restartPolicy: Always, podInjectPolicy: BeforeAppContainer}]`, nil},
		"a native sidecar after the app":                 {`initContainers: [{name: i, image: b, restartPolicy: Always}]`, nil},
		"a volume that nobody mounts":                    {`volumes: [{name: v}]`, []string{"spec.volumes[0]: v is mounted by no container of this SidecarSet and not added to Pods; mount it or remove it"}},
		"what only Pods with other fields may have":      {`containers: [{name: a, image: b, resources: {claims: [{name: gpu}]}, lifecycle: {stopSignal: SIGTERM, postStart: {sleep: {seconds: 30}}, preStop: {sleep: {seconds: 31}}}, securityContext: {procMount: Unmasked, windowsOptions: {hostProcess: true}}}]`, []string{"spec.containers[0].resources.claims[0].name: a Pod without an element gpu of spec.resourceClaims is refused; select only Pods that have it", "spec.containers[0].lifecycle.preStop.sleep.seconds: a Pod with a shorter terminationGracePeriodSeconds, which is 30 by default, is refused; select only Pods with a longer one, or sleep at most 30 seconds", "spec.containers[0].lifecycle.stopSignal: a Pod without spec.os.name is refused; select only Pods that have it", "spec.containers[0].securityContext.procMount: a Pod without hostUsers false is refused; select only Pods that have it", "spec.containers[0].securityContext.windowsOptions.hostProcess: a Pod without hostNetwork, or with a container that does not have it, is refused; select only Pods of HostProcess containers"}},
		"strategies that are not used need no attention": {`updateStrategy: {type: NotUpdate, maxUnavailable: 0, partition: 101%}`, nil},
		"a variable that names its hot-upgrade sidecar":  {`containers: [{name: a, image: b, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}, env: [{name: x, valueFrom: {resourceFieldRef: {containerName: a, resource: limits.cpu}}}, {name: z, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]}]`, []string{"spec.containers[0].env[0].valueFrom.resourceFieldRef.containerName: no container of a Pod is called a, since HotUpgrade adds -1 and -2; remove containerName, which means the container itself"}},
		"a volume that names a hot-upgrade sidecar":      {`{volumes: [{name: v, downwardAPI: {items: [{path: p, resourceFieldRef: {containerName: a, resource: limits.cpu}}, {path: q, resourceFieldRef: {containerName: a-1, resource: limits.cpu}}]}}], containers: [{name: a, image: b, volumeMounts: [{name: v, mountPath: /v}], upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}}]}`, []string{"spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName: no container of a Pod is called a, since HotUpgrade adds -1 and -2; name a-1"}},
		"a hot-upgrade sidecar with ports and probes": {`{containers: [{name: a, image: b, ports: [{containerPort: 1}], livenessProbe: {exec: {command: [x]}}, readinessProbe: {grpc: {port: 1}}, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}}], initContainers: [{name: i, image: b, restartPolicy: Always, ports: [{containerPort: 1}], startupProbe: {httpGet: {port: 1}}, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}}]}`, []string{
			"spec.initContainers[0].startupProbe: " + pairProbe,
			"spec.containers[0].ports: HotUpgrade gives them to two containers, so that a Pod with hostNetwork is refused; remove them, since a container can listen without them, or do not select such Pods",
			"spec.containers[0].readinessProbe: " + pairProbe}},
		"variables of OpenKruise": {`{containers: [{name: a, image: b, env: [{name: KRUISE_CONTAINER_PRIORITY, value: "1"}, {name: KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT, value: "true"}, {name: KRUISE_OTHER}]}], patchPodMetadata: [{patchPolicy: Retain, annotations: {apps.kruise.io/container-launch-priority: Ordered}}]}`, []string{
			"spec.containers[0].env[0].name: only OpenKruise acts on KRUISE_CONTAINER_PRIORITY; without OpenKruise, use a native sidecar (an element of initContainers with restartPolicy Always), which starts before the app, and remove the variable",
			"spec.containers[0].env[1].name: only OpenKruise acts on KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT; without OpenKruise, use a native sidecar (an element of initContainers with restartPolicy Always), which ends with the app of a Job, and remove the variable",
			"spec.patchPodMetadata[0].annotations[apps.kruise.io/container-launch-priority]: only OpenKruise acts on it; without OpenKruise, put a sidecar that is to start before the app into initContainers with restartPolicy Always, and remove the annotation"}},
		"transferEnv that copies nothing": {`containers: [{name: a, image: b, env: [{name: A}], transferEnv: [{sourceContainerName: app, envName: A}, {sourceContainerName: c-2, envNames: [B]}, {sourceContainerName: a, sourceContainerNameFrom: {fieldRef: {fieldPath: "metadata.labels['a']"}}, envName: B}]}, {name: c, image: b, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}}]`, []string{
			"spec.containers[0].transferEnv[0]: A is not copied, because the sidecar has it in env; remove it here or there",
			"spec.containers[0].transferEnv[1].sourceContainerName: c-2 is a container of this SidecarSet, and variables are copied from the Pod's own containers only; name one of these"}},
		"every member that a hot upgrade and sharing has": {`containers: [{name: a, image: b, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}, shareVolumeDevicePolicy: {type: enabled}}]`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := validation.Warnings(validationCase{spec: tc.spec}.set(t), validation.Environment{ExcludedNamespaces: []string{"ours", "kube-system"}})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// An enforced SidecarSet warns of the volumes that it adds to Pods under names that an app may have.
func TestWarningsAboutEnforcedVolumes(t *testing.T) {
	const spec = `{containers: [{name: agent, image: b, volumeMounts: [{name: data, mountPath: /d}, {name: agent-tmp, mountPath: /t}, {name: log-spool, mountPath: /s}, {name: config, mountPath: /c}]}],
volumes: [{name: data}, {name: agent-tmp}, {name: log-spool}, {name: config, configMap: {name: c}}, {name: unused}]}`
	const warning = "spec.volumes: if a Pod has a volume of its own called data, config, the enforced one of the same kind replaces it for the app too, and a Pod whose persistentVolumeClaim, secret, configMap or projected volume would be replaced by another kind is refused; choose names that no app has, such as log-data"
	for metadata, want := range map[string][]string{"": nil, `annotations: {sidecarset.io/enforce: "true"}`: {warning}} {
		got := validation.Warnings(validationCase{metadata: metadata, spec: spec}.set(t), validation.Environment{})
		got = slices.DeleteFunc(got, func(w string) bool { return !strings.HasPrefix(w, "spec.volumes: ") })
		if !slices.Equal(got, want) {
			t.Errorf("with metadata {%s}: %q, want %q", metadata, got, want)
		}
	}
}

func TestWarningsAboutUpdates(t *testing.T) {
	const (
		unreachable = "running Pods cannot be updated in place until they are recreated, neither to this content nor to later images; to update them in place, change only images, cpu and memory, and remove no amount"
		newPodsOnly = "changed for new Pods only; running Pods do not get the change and count as updated; recreate the Pods that need it"
		native      = `{updateStrategy: {type: RollingUpdate}, initContainers: [{name: i, image: b}, {name: m, image: "b:1", restartPolicy: Always}]}`
	)
	rolls := func(spec string) validationCase {
		return validationCase{spec: `{updateStrategy: {type: RollingUpdate}, ` + spec + `}`}
	}
	tests := map[string]struct {
		old, set validationCase
		want     []string
	}{
		"nothing":                              {rolls(`selector: {matchLabels: {a: b}}`), rolls(`selector: {matchLabels: {a: b}}`), nil},
		"an image":                             {rolls(`containers: [{name: a, image: "b:1"}]`), rolls(`containers: [{name: a, image: "b:2"}]`), nil},
		"the members of two containers":        {rolls(`containers: [{name: a, image: "b:1", args: [x]}, {name: c, image: "b:1"}]`), rolls(`containers: [{name: a, image: "b:2", env: [{name: A}]}, {name: c, image: "b:1", novel: 1}]`), []string{"spec.containers[0]: a: args removed, env changed: " + unreachable, "spec.containers[1]: c: novel changed: " + unreachable}},
		"the tag latest":                       {rolls(`containers: [{name: a, image: "b:1"}]`), rolls(`containers: [{name: a, image: "b:latest"}]`), []string{"spec.containers[0]: a: imagePullPolicy changed: " + unreachable}},
		"cpu":                                  {rolls(`containers: [{name: a, image: "b:1", resources: {requests: {cpu: "1"}}}]`), rolls(`containers: [{name: a, image: "b:2", resources: {requests: {cpu: "2"}}}]`), nil},
		"cpu that is removed":                  {rolls(`containers: [{name: a, image: "b:1", resources: {requests: {cpu: "1"}}}]`), rolls(`containers: [{name: a, image: "b:2"}]`), []string{"spec.containers[0]: a: resources.requests.cpu removed: " + unreachable}},
		"a container less":                     {rolls(`containers: [{name: a, image: "b:1"}, {name: c, image: "b:1"}]`), rolls(`containers: [{name: a, image: "b:1"}]`), []string{"spec.containers: c was removed: " + unreachable}},
		"what the hash does not cover":         {rolls(``), rolls(`initContainers: [{name: i, image: b}], volumes: [{name: v, emptyDir: {}}], imagePullSecrets: [{name: s}], patchPodMetadata: [{annotations: {a: b}}]`), []string{"spec.volumes[0]: v is mounted by no container of this SidecarSet and not added to Pods; mount it or remove it", "spec.initContainers: " + newPodsOnly, "spec.volumes: " + newPodsOnly, "spec.imagePullSecrets: " + newPodsOnly, "spec.patchPodMetadata: " + newPodsOnly}},
		"T3: init containers of a native list": {validationCase{spec: native}, validationCase{spec: `{updateStrategy: {type: RollingUpdate}, initContainers: [{name: i, image: b, args: [x]}, {name: "n", image: "b:1", restartPolicy: Always}]}`}, []string{"spec.initContainers[0]: i: args changed: " + unreachable, "spec.initContainers[1]: n is new: " + unreachable, "spec.initContainers: m was removed: " + unreachable}},
		"running Pods that shall not follow":   {rolls(``), validationCase{spec: `containers: [{name: a, image: "b:1", args: [x]}]`}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			env := validation.Environment{Object: tc.set.object(t), Replaced: tc.old.object(t)}
			if diff := cmp.Diff(tc.want, validation.Warnings(tc.set.set(t), env)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("members that the hash takes for equal", func(t *testing.T) {
		old, set := rolls(`containers: [{name: a, image: "b:1", resources: {limits: {cpu: "1"}}}]`), rolls(`containers: [{name: a, image: "b:1", resources: {limits: {cpu: 1000m}}}]`)
		env := validation.Environment{Object: set.object(t), Replaced: old.object(t), SameWithoutImages: true}
		if got := validation.Warnings(set.set(t), env); len(got) > 0 {
			t.Errorf("got %q", got)
		}
	})
}

func TestAWarningNamesTheAnnotationThatReplacesFirstBatch(t *testing.T) {
	set := &appsv1beta1.SidecarSet{}
	set.Annotations = map[string]string{"sidecarset.io/first-batch": "1"}
	got := strings.Join(validation.Warnings(set, validation.Environment{}), "\n")
	if !strings.Contains(got, "metadata.annotations[sidecarset.io/first-batch]") || !strings.Contains(got, appsv1beta1.AnnotationMinReadySeconds) {
		t.Errorf("warnings are %q", got)
	}
}
