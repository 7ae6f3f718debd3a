package validation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/random"
	"github.com/sidecarset/operator/internal/validation"
)

// A member that this build does not know is injected as it is. If its name is a mistake, only
// this warning shows it.
func TestMembersThatAreNotKnownAreNamed(t *testing.T) {
	const kept = ": is unknown to this operator, which injects it unchanged"
	tests := map[string]struct {
		spec string
		want []string
	}{
		"a letter is missing":           {`{containers: [{name: a, image: b, volumeMount: []}]}`, []string{"spec.containers[0].volumeMount" + kept + "; use volumeMounts if that is meant"}},
		"letters are swapped":           {`{containers: [{name: a, image: b, pots: [], comamnd: [x]}]}`, []string{"spec.containers[0].comamnd" + kept + "; use command if that is meant", "spec.containers[0].pots" + kept + "; use ports if that is meant"}},
		"another case, below":           {`{containers: [{name: a, image: b, securityContext: {runAsuser: 1}, livenessProbe: {httpget: {port: 1}}}]}`, []string{"spec.containers[0].livenessProbe.httpget" + kept + "; use httpGet if that is meant", "spec.containers[0].securityContext.runAsuser" + kept + "; use runAsUser if that is meant"}},
		"the wrong level":               {`{initContainers: [{name: i, image: b, privileged: true}]}`, []string{"spec.initContainers[0].privileged" + kept + "; use securityContext.privileged if that is meant"}},
		"volumes":                       {`{volumes: [{name: v, emptydir: {}}]}`, []string{"spec.volumes[0].emptydir" + kept + "; use emptyDir if that is meant"}},
		"nothing alike":                 {`{containers: [{name: a, image: b, fromTheFuture: 1}]}`, []string{"spec.containers[0].fromTheFuture" + kept + "; remove it if it is a mistake"}},
		"null is absent":                {`{containers: [{name: a, image: b, fromTheFuture: null}]}`, nil},
		"keys of maps are not members":  {`{containers: [{name: a, image: b, resources: {limits: {example.com/gpu: 1}}}]}`, nil},
		"what only SidecarSets know of": {`{containers: [{name: a, image: b, podInjectPolicy: AfterAppContainer, transferEnv: [{sourceContainerName: a, envName: B, envNames: [C]}], upgradeStrategy: {upgradeType: ColdUpgrade}, shareVolumePolicy: {type: disabled}, shareVolumeDevicePolicy: {type: disabled}, resourcesPolicy: {targetContainersMode: sum, targetContainersNameRegex: x, resourcesExpr: {limits: {cpu: cpu}}}}]}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := validationCase{spec: tc.spec}
			var said []string
			for _, warning := range validation.Warnings(c.set(t), validation.Environment{Object: c.object(t)}) {
				if strings.Contains(warning, kept) {
					said = append(said, warning)
				}
			}
			if diff := cmp.Diff(tc.want, said); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWarningsAboutUnknownMembersAreFew(t *testing.T) {
	var members []string
	for i := range 1000 {
		members = append(members, fmt.Sprintf("m%d: 1", i))
	}
	c := validationCase{spec: `{containers: [{name: a, image: b, ` + strings.Join(members, ", ") + `}]}`}
	said := validation.Warnings(c.set(t), validation.Environment{Object: c.object(t)})
	if len(said) != 11 || said[10] != "spec: 990 more members of containers and volumes are not known to this operator and injected as they are; remove those that are a mistake" {
		t.Errorf("%d warnings, the last one %q", len(said), said[len(said)-1])
	}
}

// No member that a Pod may have is reported as unknown.
func TestMembersOfPodsAreKnown(t *testing.T) {
	g := random.New(7)
	for range 300 {
		stored := fixtures.Stored(decoded(t, g.SidecarSet()))
		for _, warning := range validation.Warnings(typed(t, stored), validation.Environment{Object: stored}) {
			if strings.Contains(warning, "is unknown to this operator") {
				t.Error(warning)
			}
		}
	}
}
