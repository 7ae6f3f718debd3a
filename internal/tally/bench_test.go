package tally_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// BenchmarkASecondOfTheLeader is what the tally does in a second: 100,000 Pods carry 20 SidecarSets,
// 100 Pods change, each status is computed, and in "rollout" one SidecarSet looks for Pods to write ten
// times. The time of one operation is the share of a core.
func BenchmarkASecondOfTheLeader(b *testing.B) {
	const pods, sets, events = 100_000, 20, 100
	for _, outdated := range []bool{false, true} {
		name := "quiet"
		if outdated {
			name = "rollout"
		}
		b.Run(name, func(b *testing.B) {
			var programs []*inject.Program
			var names []string
			for i := range sets {
				names = append(names, fmt.Sprintf("set-%02d", i))
				program := crowdProgram(b, names[i], "yes", "log")
				if outdated && i == 0 {
					program.Hash = strings.Repeat("zzzz2456", 8)
				}
				programs = append(programs, program)
			}
			tl := tally.New(nil)
			now := time.Unix(1_900_000_000, 0)
			tl.Settle(now)
			tl.SetSnapshot(match.Build(programs, map[string]labels.Set{}))
			var h podstate.Hashes
			for i, name := range names {
				h = h.With(podstate.HashRecord{SidecarSetName: name, Hash: programs[min(i+1, sets-1)].Hash, SidecarList: []string{"log"}, ControllerRevision: name + "-1"})
			}
			record := func(i int, ready bool) *podstate.Record {
				pod := realisticPod(i)
				pod.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: strings.Join(names, ","), appsv1beta1.AnnotationHash: h.String(), appsv1beta1.AnnotationHashWithoutImage: h.String()}
				if !ready {
					pod.Status.Conditions[1] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now)}
				}
				return podstate.FromPod(pod)
			}
			for i := range pods {
				tl.Set(record(i, true))
			}
			changed := make([]*podstate.Record, events)
			for i := range changed {
				changed[i] = record(i*997%pods, i%2 == 0)
			}
			for b.Loop() {
				now = now.Add(time.Second)
				tl.Settle(now)
				for _, r := range changed {
					tl.Set(r)
				}
				for i, name := range names {
					tl.State(name)
					tl.SetCurrent(name, tally.Current{Program: programs[i], Revision: programs[i].Revision(), Since: now, Status: rollout.Begun})
				}
				for range 10 {
					for _, name := range names {
						tl.Due(name, 0)
					}
				}
			}
		})
	}
}
