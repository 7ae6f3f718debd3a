package rollout_test

import (
	"cmp"
	"flag"
	"fmt"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures/cluster"
)

// scene is what happens in an imitated cluster: values, and functions for what values cannot say.
type scene struct {
	pods, apps int
	max        float64 // maxUnavailable; below 1, a percentage; 0: 1
	seed       int64   // 0: 1
	partition  float64
	minReady   int // seconds; 0: the default
	// At any time, a share of the Pods is down for reasons of its own, for down seconds on average.
	share, down float64
	// updated: an earlier rollout has updated all Pods, so many seconds ago.
	updated int
	// A restart takes so many seconds; 0: 2 to 5.
	restart [2]int
	// The SidecarSet gets these images, one after another, so many seconds after the one before.
	images []cluster.Image
	every  int
	edits  []int // which of them, by number; nil: all, in order
	// broken: all Pods have the first image already.
	broken bool
	// seconds is how long it continues after the last edit; 0: until no Pod is outdated or broken.
	seconds int
	// hurries: it ends as soon as a figure is wrong.
	hurries bool

	setup   func(*cluster.Cluster)        // before the first second
	before  func(*cluster.Cluster)        // before the first edit
	happens func(*cluster.Cluster, int)   // each second after it
	cured   func(c *cluster.Cluster) bool // nil: no Pod is down because of an image
	end     func(*cluster.Cluster) int    // another figure, for figures.other
}

// figures are what a scene comes to. Times are seconds after the last edit.
type figures struct {
	victims, down, new int // Pods that got a bad image while they served, while they were down, and when they were new
	peak               int // the most Pods that were down because of a write
	done, cured        int // when no Pod was outdated, or broken
	other              int
}

// never is the time of what does not happen.
const (
	never  = 1 << 30
	aDay   = 24 * anHour
	anHour = 3600
)

func (s *scene) begin(t testing.TB, leaders func(*cluster.Cluster)) *cluster.Cluster {
	seed, maxUnavailable := max(1, s.seed), s.max
	if maxUnavailable == 0 {
		maxUnavailable = 1
	}
	c := cluster.New(t, seed, s.pods, s.apps, maxUnavailable)
	c.Contents = append(c.Contents, s.images...)
	if s.restart[1] > 0 {
		c.RestartLo, c.RestartHi = s.restart[0], s.restart[1]
	}
	if s.minReady > 0 {
		c.MinReady = s.minReady
	}
	c.Partition = s.partition
	c.Background(s.share, s.down)
	for _, do := range []func(*cluster.Cluster){s.setup, leaders} {
		if do != nil {
			do(c)
		}
	}
	if s.updated > 0 {
		c.Updated(s.updated)
	}
	pass(c, 5, nil)
	if s.broken {
		c.Edit(1)
		for _, p := range c.Pods {
			c.Give(p, 1)
		}
	}
	if s.before != nil {
		s.before(c)
	}
	return c
}

// run returns the figures of a scene. It waits no longer for what is to come than a few times as long as the
// model.
func (s *scene) run(t testing.TB, model figures, leaders func(*cluster.Cluster)) (f figures) {
	c := s.begin(t, leaders)
	f.done, f.cured = never, never
	edits := s.edits
	for i := 1 + b2i(s.broken); i <= len(s.images) && s.edits == nil; i++ {
		edits = append(edits, i)
	}
	clock := 0
	each := func() {
		clock++
		if s.happens != nil {
			s.happens(c, clock)
		}
	}
	for i, content := range edits {
		c.Edit(content)
		last, length := i == len(edits)-1, s.every
		if last {
			length = cmp.Or(s.seconds, 3*max(model.done, model.cured)+1000)
		}
		for n := 1; n <= length; n++ {
			if last && f.cured == never && s.isCured(c) {
				f.cured = n - 1
			}
			c.Step(each)
			if !last {
				continue
			}
			if over := c.Outdated() == 0; over && f.done == never {
				f.done = n
			}
			if s.hurries && n%30 == 0 {
				now := figures{victims: len(c.Victims), down: len(c.DownVictims), peak: c.PeakDown, done: min(n, f.done), cured: min(n, f.cured)}
				if len(now.wrong(model)) > 0 {
					break
				}
			}
			image := c.Contents[content]
			if f.done != never && f.cured != never && s.seconds == 0 || s.happens == nil && c.Outdated() == 0 && n > image.Delay+image.Jitter+60 && c.Now%600 == 0 {
				break
			}
		}
	}
	f.victims, f.down, f.new, f.peak = len(c.Victims), len(c.DownVictims), len(c.NewVictims), c.PeakDown
	if s.end != nil {
		f.other = s.end(c)
	}
	return f
}

func (s *scene) isCured(c *cluster.Cluster) bool {
	if s.cured != nil {
		return s.cured(c)
	}
	return c.Hurt() == 0
}

func b2i(is bool) int {
	if is {
		return 1
	}
	return 0
}

func pass(c *cluster.Cluster, seconds int, happens func(t int)) {
	for t := 1; t <= seconds; t++ {
		c.Step(func() {
			if happens != nil {
				happens(t)
			}
		})
	}
}

// wrong compares figures with those of the model with which the rules were chosen: no more than two
// victims more, and no time more than a tenth longer. A figure that the model does not have is not compared,
// but for victims.
func (f figures) wrong(model figures) (wrong []string) {
	victims := func(n int) int { return n + max(2, n/10) }
	times := func(n int) int {
		if n == 0 {
			return never
		}
		return n + n/10 + 5 // a short time is not known better
	}
	exact := func(n int) int {
		if n == 0 {
			return never
		}
		return n
	}
	for _, x := range []struct {
		what             string
		got, model, most int
	}{
		{"victims", f.victims, model.victims, victims(model.victims)}, {"victims that were down", f.down, model.down, victims(model.down)},
		{"new victims", f.new, model.new, victims(model.new)}, {"Pods down", f.peak, model.peak, exact(model.peak)},
		{"seconds", f.done, model.done, times(model.done)}, {"seconds until all are cured", f.cured, model.cured, times(model.cured)}, {"of it", f.other, model.other, exact(model.other)},
	} {
		if x.got > x.most {
			wrong = append(wrong, fmt.Sprintf("%d %s, want at most %d; the model has %d", x.got, x.what, x.most, x.model))
		}
	}
	return wrong
}

func (f figures) check(t *testing.T, model figures) {
	t.Helper()
	for _, wrong := range f.wrong(model) {
		t.Error(wrong)
	}
	t.Logf("%+v; the model has %+v", f, model)
}

var (
	seedsFlag = flag.Int64("rollout.seeds", 0, "how many random clusters are simulated; 0: some hundreds, and fewer with -short")
	baseFlag  = flag.Int64("rollout.base", 0, "the seed before the first one")
)

func only(images ...cluster.Image) []cluster.Image { return images }

func breaksAfter(seconds int) cluster.Image {
	return cluster.Image{Does: cluster.BreaksApp, Delay: seconds}
}

var (
	good    = cluster.Image{}
	noStart = cluster.Image{Does: cluster.NoStart}
)

// leaders are how leaders change.
var leaders = map[string]func(*cluster.Cluster){
	"":                           nil,
	", a new leader each minute": func(c *cluster.Cluster) { c.LeaderEvery = 60 },
	", many leaders":             func(c *cluster.Cluster) { c.Restless = true },
}

func sprint(x ...any) string { return fmt.Sprint(x...) }
