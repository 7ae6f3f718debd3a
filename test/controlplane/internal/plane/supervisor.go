package plane

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
)

const (
	// startPatience bounds one component's start on a machine that is busy
	// compiling; alone, the slowest takes four seconds.
	startPatience = 5 * time.Minute
	// stopPatience is how long a component may take to stop before it is killed. An API
	// server would wait up to a minute for its open requests.
	stopPatience = 5 * time.Second
)

// supervisor owns the processes of one stand.
type supervisor struct {
	o      *Options
	files  files
	admin  pki.Pair
	client *client
	lost   chan *child // a component that ended by itself

	info Info

	mu       sync.Mutex // guards the fields below
	children []*child
	stopping bool // nothing is started any more
}

// Run runs the stand until ctx or a component ends, or orders do, which may be nil. It writes its Info
// to out, in one line, when everything answers; then the answers to orders. When it returns, every
// process that it started is gone.
func Run(ctx context.Context, o *Options, orders io.Reader, out io.Writer) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	s := &supervisor{o: o, lost: make(chan *child, 16)}
	defer func() {
		s.stopAll()
		err = errors.Join(err, o.cleanUp(err))
	}()
	if err := s.prepare(); err != nil {
		return fmt.Errorf("preparing %s: %w", o.Dir, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if orders != nil {
		go func() {
			defer cancel()
			s.obey(ctx, orders, out) // the first order comes when the stand is ready
		}()
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := json.NewEncoder(out).Encode(s.info); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case c := <-s.lost:
		return c.failure()
	}
}

// cleanUp removes the data of a temporary stand. After a failure it keeps the logs.
func (o *Options) cleanUp(failure error) error {
	switch {
	case !o.Temporary:
		return nil
	case failure == nil || errors.Is(failure, context.Canceled):
		return os.RemoveAll(o.Dir)
	}
	entries, err := os.ReadDir(o.Dir)
	for _, entry := range entries {
		if entry.Name() != "logs" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.Dir, entry.Name())))
		}
	}
	return err
}

// start starts the components in the order of their dependencies.
func (s *supervisor) start(ctx context.Context) error {
	if err := s.startTier(ctx, etcd(s.files)); err != nil {
		return err
	}
	database := serverURL("http", s.find("etcd").listen[0])

	servers := []component{apiServer(s.o, s.files, "kube-apiserver-1", database)}
	if s.o.APIServers == 2 {
		servers = append(servers, apiServer(s.o, s.files, "kube-apiserver-2", database))
	}
	if err := s.startTier(ctx, servers...); err != nil {
		return err
	}
	if err := s.writeKubeconfigs(); err != nil {
		return err
	}
	if !s.o.Full {
		return s.await(ctx, "the namespace default", func(ctx context.Context) error {
			return s.client.get(ctx, s.info.APIServers[0]+"/api/v1/namespaces/default", nil)
		})
	}
	return s.startControllers(ctx)
}

// startControllers starts the controllers and nodes that make an API server a cluster.
func (s *supervisor) startControllers(ctx context.Context) error {
	server := s.info.APIServers[0]
	tier := []component{controllerManager(s.files), scheduler(s.files)}
	if s.o.Kwok || s.o.Nodes > 0 {
		tier = append(tier, kwok(s.files))
		if err := createNodes(ctx, s.client, server, s.o.Nodes, s.o.Version); err != nil {
			return err
		}
	}
	if err := s.startTier(ctx, tier...); err != nil {
		return err
	}
	err := s.await(ctx, "the ServiceAccount default/default", func(ctx context.Context) error {
		return s.client.get(ctx, server+"/api/v1/namespaces/default/serviceaccounts/default", nil)
	})
	if err != nil {
		return err
	}
	return s.await(ctx, "the fake nodes", func(ctx context.Context) error {
		return nodesReady(ctx, s.client, server, s.o.Nodes)
	})
}

// startTier starts components that do not depend on each other, and waits for all of them.
func (s *supervisor) startTier(ctx context.Context, tier ...component) error {
	failures := make([]error, len(tier))
	var starting sync.WaitGroup
	for i, c := range tier {
		starting.Go(func() { failures[i] = s.startComponent(ctx, c) })
	}
	starting.Wait()
	return errors.Join(failures...)
}

// startComponent starts a component on ports of its own, and waits until it is healthy. If
// another process binds one of the ports first, it tries other ports.
func (s *supervisor) startComponent(ctx context.Context, c component) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		ports, err := freePorts(c.ports)
		if err != nil {
			return err
		}
		ch, err := s.run(ctx, c, ports)
		if err == nil {
			return nil
		}
		if ch == nil || attempt == attempts || !ch.lostPort() {
			return err
		}
	}
}

// run starts one process and waits until it is healthy; from then on, its end
// is a failure of the stand.
func (s *supervisor) run(ctx context.Context, c component, ports []int) (*child, error) {
	ch, err := spawn(c, s.o.Bin, filepath.Join(s.o.Dir, "logs"), s.o.argsFor(c.program), ports)
	if err != nil {
		return nil, err
	}
	if !s.adopt(ch) {
		ch.stop(0)
		return nil, fmt.Errorf("starting %s: the stand is stopping", c.name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("not healthy after %s", startPatience))
	defer cancel()
	err = poll(ctx, func(ctx context.Context) error {
		if !ch.alive() {
			return final{ch.failure()}
		}
		return s.client.get(ctx, c.health(ports), nil)
	})
	if err == nil {
		go s.watch(ch)
		return ch, nil
	}
	if !errors.As(err, new(final)) {
		err = fmt.Errorf("waiting for %s: %w; the end of %s:\n%s", c.name, err, ch.log, ch.tail(20))
	}
	return ch, err
}

// adopt adds the child to the list, in the place of its predecessor if it has one. It returns
// false if the stand is already stopping.
func (s *supervisor) adopt(ch *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.children = slices.DeleteFunc(s.children, func(old *child) bool { return old.name == ch.name })
	s.children = append(s.children, ch)
	slices.SortFunc(s.children, func(a, b *child) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.name, b.name))
	})
	return true
}

func (s *supervisor) watch(ch *child) {
	<-ch.done
	if !ch.dismiss.Load() {
		s.lost <- ch
	}
}

// await waits for a result of several components.
func (s *supervisor) await(ctx context.Context, what string, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("not there after %s", startPatience))
	defer cancel()
	err := poll(ctx, func(ctx context.Context) error {
		select {
		case ch := <-s.lost:
			return final{ch.failure()}
		default:
			return probe(ctx)
		}
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w; logs are in %s", what, err, filepath.Join(s.o.Dir, "logs"))
	}
	return nil
}

func (s *supervisor) find(name string) *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range s.children {
		if ch.name == name {
			return ch
		}
	}
	return nil
}

// components returns what runs now.
func (s *supervisor) components() (all []Component) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range s.children {
		c := Component{Name: ch.name, Ports: ch.listen}
		if ch.alive() {
			c.Pid = ch.pid()
		}
		all = append(all, c)
	}
	return all
}

// stopAll stops the processes rank by rank, the last rank first.
func (s *supervisor) stopAll() {
	s.mu.Lock()
	s.stopping = true
	children := slices.Clone(s.children)
	s.mu.Unlock()
	for _, ch := range children {
		ch.dismiss.Store(true)
	}
	for len(children) > 0 {
		rank := children[len(children)-1].rank()
		first := slices.IndexFunc(children, func(ch *child) bool { return ch.rank() == rank })
		var stopping sync.WaitGroup
		for _, ch := range children[first:] {
			stopping.Go(func() { ch.stop(stopPatience) })
		}
		stopping.Wait()
		children = children[:first]
	}
}
