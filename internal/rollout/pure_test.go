package rollout_test

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/test/rounds"
)

// randomPods returns Pods in any state, with times up to twenty minutes ago.
func randomPods(rng *rand.Rand, n int) (pods []*rollout.Pod) {
	words := []string{"", "ContainerCreating", "ErrImagePull", "CrashLoopBackOff"}
	for i := range n {
		p := pod(i, readySince(rng.Intn(1200)), in(fmt.Sprint(rng.Intn(4))))
		p.Summary.Ready, p.Summary.Grace = rng.Intn(3) > 0, uint32(rng.Intn(100))
		p.Resets = rng.Intn(20) == 0
		p.AsNew, p.Summary.Order.Created = rng.Intn(3) == 0, noon-int64(rng.Intn(1200))
		if rng.Intn(10) == 0 {
			p.Undone = podstate.Undone{At: ago(rng.Intn(1200)), StateBefore: podstate.StateBefore(rng.Intn(3))}
		}
		p.Summary.Order.Assigned = p.Summary.Ready || rng.Intn(5) > 0
		if p.Summary.Ready {
			p.Dead = false
		} else {
			p.Dead, p.Trouble = rng.Intn(10) == 0, trouble(words[rng.Intn(len(words))])
		}
		if rng.Intn(2) == 0 {
			current(p)
		}
		if at := rng.Intn(1200); rng.Intn(3) > 0 {
			wrote(at, podstate.StateBefore(rng.Intn(3)))(p)
			if rng.Intn(3) > 0 {
				carriedOut(at - rng.Intn(min(30, at+1)))(p)
				p.Written.Up = rng.Intn(2) == 0
				if rng.Intn(5) == 0 {
					p.Written.Carried += 40
				}
			}
		} else if rng.Intn(5) == 0 {
			sent(podstate.StateBefore(rng.Intn(3)))(p)
			p.Sent.At = ago(rng.Intn(20))
		} else if rng.Intn(5) == 0 {
			p.Backoff = &rollout.Backoff{Until: noon - 100 + int64(rng.Intn(300)), Reason: inplace.WriteRejected}
		}
		pods = append(pods, p)
	}
	return pods
}

func randomStrategy(rng *rand.Rand) update {
	amounts := []string{"-", "0", "1", "3", "10%", "50%", "100%"}
	return update{MaxUnavailable: share(amounts[rng.Intn(len(amounts))]), Partition: share(amounts[rng.Intn(len(amounts))]), Paused: rng.Intn(20) == 0}
}

// shown is a plan without what changes with time.
func shown(plan rollout.Plan) string {
	resets := slices.Sorted(slices.Values(names(plan.Reset)))
	return fmt.Sprint(names(plan.Write), resets, plan.Rule, plan.Who, plan.Numbers, plan.Blocked.List(), plan.NotRunning.List(), plan.NotRunningCurrent, plan.Status)
}

// Decide is a pure function. It changes no Pod, and their order does not matter. If nothing happens,
// its answer is the same until Next.
func TestDecideIsPure(t *testing.T) {
	for seed := range int64(rounds.Of(2000, 300)) {
		rng := rand.New(rand.NewSource(seed))
		pods := randomPods(rng, rng.Intn(25))
		s := withMinReady(randomStrategy(rng), fmt.Sprint(30*rng.Intn(3)))
		status := rollout.Status{Started: noon - 100, NotReadyBefore: rng.Intn(3)}
		if rng.Intn(3) == 0 {
			status.Disappeared, status.DisappearedUntil = 1+rng.Intn(2), noon+1+int64(rng.Intn(600))
		}
		stored := rng.Intn(5) > 0
		copies := make([]rollout.Pod, len(pods))
		for i, p := range pods {
			copies[i] = *p
		}
		plan := rollout.Decide(rollout.Input{Strategy: s, Status: status, Stored: stored, Now: noon}, pods)
		for i, p := range pods {
			if !reflect.DeepEqual(copies[i], *p) {
				t.Fatalf("seed %d: Pod %d is changed", seed, i)
			}
		}
		want := shown(plan)
		rng.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		if again := rollout.Decide(rollout.Input{Strategy: s, Status: status, Stored: stored, Now: noon}, pods); shown(again) != want || again.Next != plan.Next {
			t.Fatalf("seed %d: in another order, Decide() = %s, want %s", seed, shown(again), want)
		}
		if plan.Next != 0 && plan.Next <= noon {
			t.Fatalf("seed %d: the next decision is %d s ago", seed, noon-plan.Next)
		}
		end := plan.Next
		if end == 0 {
			end = noon + 5000
		}
		for _, now := range []int64{noon + 1, (noon + end) / 2, end - 1} {
			if now <= noon || now >= end {
				continue
			}
			if later := rollout.Decide(rollout.Input{Strategy: s, Status: status, Stored: stored, Now: now}, pods); shown(later) != want {
				t.Fatalf("seed %d: %d s later and %d s before the next decision, Decide() = %s, want %s", seed, now-noon, end-now, shown(later), want)
			}
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	mixed := randomPods(rand.New(rand.NewSource(1)), 10_000)
	outdated := many(10_000)
	for i, p := range outdated {
		in(fmt.Sprint(i / 20))(p)
	}
	s := withMinReady(update{MaxUnavailable: share("10%")}, "30")
	for name, pods := range map[string][]*rollout.Pod{"outdated": outdated, "mixed": mixed} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				rollout.Decide(rollout.Input{Strategy: s, Status: rollout.Begun, Stored: true, Now: noon}, pods)
			}
		})
	}
}
