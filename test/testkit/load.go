package testkit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Load creates Pods at a steady rate and judges each answer. The Pods stay
// pending, since no scheduler looks at them, until their namespace is deleted.
type Load struct {
	Clients   []kubernetes.Interface // used in turn, one for each API server
	Namespace string
	Labels    map[string]string
	// Sidecars are the containers that each Pod has to get. A Pod that was created
	// with others, or without one of them, counts as uninjected.
	Sidecars []string
	// Rate is how many Pods there are per second, whether or not earlier ones have
	// been answered. If mostAtOnce have not, the next one waits.
	Rate int
	// DryRun stores no Pod; API servers call webhooks all the same.
	DryRun bool
	// Patience bounds one creation; 0 means half a minute.
	Patience time.Duration
}

// mostAtOnce keeps API servers on a busy machine from opening more connections than a
// replica takes from their address.
const mostAtOnce = 100

// Running is a Load that continues until it is stopped.
type Running struct {
	Load Load

	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	figures Figures
}

// Start creates Pods until Stop is called or ctx ends. The caller must Stop it.
func (l Load) Start(ctx context.Context) *Running {
	ticking, stop := context.WithCancel(ctx)
	r := &Running{Load: l, stop: stop, done: make(chan struct{})}
	go r.run(ctx, ticking)
	return r
}

// Stop creates no more Pods, waits for the answers to those that were sent, and returns the
// figures of all.
func (r *Running) Stop() Figures {
	r.stop()
	<-r.done
	return r.figures
}

// Figures returns the figures so far.
func (r *Running) Figures() Figures {
	r.mu.Lock()
	defer r.mu.Unlock()
	copied := r.figures
	copied.Errors, copied.latencies = slices.Clone(copied.Errors), slices.Clone(copied.latencies)
	return copied
}

// run creates Pods until ticking ends. ctx bounds the creations themselves.
func (r *Running) run(ctx, ticking context.Context) {
	defer close(r.done)
	var creations sync.WaitGroup
	defer creations.Wait()
	places := make(chan struct{}, mostAtOnce)
	begin := time.Now()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.figures.Took = time.Since(begin)
	}()
	for i := 0; ; i++ {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(r.Load.Rate)) // a Pod that is overdue is created at once
		select {
		case <-time.After(time.Until(due)):
		case <-ticking.Done():
			return
		}
		select {
		case places <- struct{}{}:
			creations.Go(func() {
				defer func() { <-places }()
				r.create(ctx, i, due)
			})
		case <-ticking.Done():
			return
		}
	}
}

func (r *Running) create(ctx context.Context, i int, due time.Time) {
	patience := r.Load.Patience
	if patience == 0 {
		patience = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	options := metav1.CreateOptions{}
	if r.Load.DryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	client := r.Load.Clients[i%len(r.Load.Clients)]
	pod, err := client.CoreV1().Pods(r.Load.Namespace).Create(ctx, NewPod(r.Load.Labels), options)
	took := time.Since(due)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.figures.add(pod, took, err, r.Load.Sidecars)
}

// NewPod returns a Pod to create that no scheduler looks at.
func NewPod(labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "load-", Labels: labels},
		Spec: corev1.PodSpec{
			SchedulerName: "none",
			Containers:    []corev1.Container{{Name: "app", Image: "example.com/app:v1"}},
		},
	}
}

// Figures are the answers to a Load.
type Figures struct {
	Created    int // Pods, injected or not
	Failed     int // Pods that were refused, or not answered
	Uninjected int // Pods that were created without a required sidecar, or with one too many
	// Errors are the first few of the failures.
	Errors []string
	// Took is for how long Pods were created; zero before the Load is stopped.
	Took time.Duration

	latencies []time.Duration // of those created, from when they were due
}

func (f *Figures) add(pod *corev1.Pod, took time.Duration, err error, sidecars []string) {
	if err != nil {
		f.Failed++
		const few = 5
		if len(f.Errors) < few {
			f.Errors = append(f.Errors, fmt.Sprintf("%s: %v", time.Now().Format(time.StampMilli), err))
		}
		return
	}
	f.Created++
	f.latencies = append(f.latencies, took)
	if !Injected(pod, sidecars) {
		f.Uninjected++
	}
}

// Injected says whether a Pod of NewPod has got these containers and no others.
func Injected(pod *corev1.Pod, sidecars []string) bool {
	if len(pod.Spec.Containers) != 1+len(sidecars) {
		return false
	}
	for _, sidecar := range sidecars {
		if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == sidecar }) {
			return false
		}
	}
	return true
}

// String is in the form that figures are reported in.
func (f *Figures) String() string {
	return fmt.Sprintf("took=%s created=%d failed=%d uninjected=%d %s", Rounded(f.Took), f.Created, f.Failed, f.Uninjected, Spread(f.latencies))
}

// Spread describes times in the form that figures are reported in.
func Spread(times []time.Duration) string {
	return fmt.Sprintf("p50=%s p99=%s max=%s", Rounded(Quantile(times, 0.5)), Rounded(Quantile(times, 0.99)), Rounded(Quantile(times, 1)))
}

// Quantile is the smallest time that the share q of all times does not exceed.
func Quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	at := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}

// Rounded keeps three digits, which is all that a busy machine can show.
func Rounded(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	default:
		return d.Round(time.Microsecond)
	}
}
