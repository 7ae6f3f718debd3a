package plane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
	"github.com/sidecarset/operator/test/controlplane/stages"
)

const (
	// startPatience bounds one component's start on a machine that is busy
	// compiling; alone, the slowest takes four seconds.
	startPatience = 2 * time.Minute
	// stopPatience bounds the polite half of stopping. An API server would wait
	// up to a minute for its open requests.
	stopPatience = 5 * time.Second
)

// supervisor owns the processes of one stand.
type supervisor struct {
	o      *Options
	files  files
	admin  pki.Pair
	client *client
	lost   chan *child // a component that ended without being asked to

	mu       sync.Mutex // guards what follows
	children []*child   // in the order of their start
	info     Info
}

// Run runs the stand until ctx ends or a component does. It calls ready once,
// when everything answers. When it returns, every process that it started is
// gone.
func Run(ctx context.Context, o *Options, ready func(*Info) error) (err error) {
	begin := time.Now()
	if err := o.Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	s := &supervisor{o: o, lost: make(chan *child, 16)}
	defer s.stopAll()
	defer os.Remove(infoFile(o.Dir))
	control, err := serveControl(o.Dir, s)
	if err != nil {
		return err
	}
	defer control.Close()

	if err := s.prepare(); err != nil {
		return fmt.Errorf("preparing %s: %w", o.Dir, err)
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	s.setReady(time.Since(begin))
	if err := ready(s.snapshot()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case c := <-s.lost:
		return c.failure()
	}
}

// prepare writes every file that components are given.
func (s *supervisor) prepare() error {
	o := s.o
	for _, sub := range []string{"logs", "components"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, sub), 0o755); err != nil {
			return err
		}
	}
	authority, err := pki.Open(filepath.Join(o.Dir, "pki"))
	if err != nil {
		return err
	}
	serviceAccountKey, err := authority.ServiceAccountKey()
	if err != nil {
		return err
	}
	serving, err := authority.Serving("serving", servingNames, servingAddresses(o.BindAddress))
	if err != nil {
		return err
	}
	if s.admin, err = authority.Client("admin", "admin", "system:masters"); err != nil {
		return err
	}
	if s.client, err = newClient(authority, s.admin); err != nil {
		return err
	}
	config, err := stages.Config()
	if err != nil {
		return err
	}
	s.files = files{
		dir: o.Dir, authority: authority, serving: serving, serviceAccountKey: serviceAccountKey,
		stages:      filepath.Join(o.Dir, "components", "kwok.yaml"),
		auditPolicy: filepath.Join(o.Dir, "components", "audit-policy.yaml"),
	}
	s.info = Info{
		Dir: o.Dir, Bin: o.Bin, Version: o.Version, ServiceCIDR: ServiceCIDR,
		Kubeconfig: filepath.Join(o.Dir, "kubeconfig"), CAFile: authority.CertFile(),
		Pid: os.Getpid(), StartTime: startTime(os.Getpid()),
	}
	return errors.Join(
		os.WriteFile(s.files.stages, []byte(config), 0o644),
		os.WriteFile(s.files.auditPolicy, []byte(auditPolicy), 0o644),
	)
}

// auditPolicy logs one line per request, without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

var servingNames = []string{
	"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
}

func servingAddresses(bind string) []net.IP {
	first, _, _ := net.ParseCIDR(ServiceCIDR)
	first = first.To4()
	first[3]++ // the address of the Service kubernetes
	return []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, first, net.ParseIP(bind)}
}

// start starts the components in the order in which they need one another.
func (s *supervisor) start(ctx context.Context) error {
	if err := s.startTier(ctx, etcd(s.o, s.files)); err != nil {
		return err
	}
	s.info.Etcd = s.o.url("http", s.children[0].listen[0])

	servers := []component{apiServer(s.o, s.files, "kube-apiserver-1", s.info.Etcd)}
	if s.o.APIServers == 2 {
		servers = append(servers, apiServer(s.o, s.files, "kube-apiserver-2", s.info.Etcd))
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

// startControllers starts what makes a cluster of an API server.
func (s *supervisor) startControllers(ctx context.Context) error {
	server := s.info.APIServers[0]
	tier := []component{controllerManager(s.o, s.files), scheduler(s.o, s.files)}
	if s.o.Kwok || s.o.Nodes > 0 {
		tier = append(tier, kwok(s.o, s.files))
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

// startTier starts components that do not need one another, and waits for all.
func (s *supervisor) startTier(ctx context.Context, tier ...component) error {
	failures := make([]error, len(tier))
	var starting sync.WaitGroup
	for i, c := range tier {
		starting.Go(func() { failures[i] = s.startComponent(ctx, c) })
	}
	starting.Wait()
	return errors.Join(failures...)
}

// startComponent starts a component on ports of its own and waits until it is
// healthy. Other ports are tried if somebody was faster to bind one.
func (s *supervisor) startComponent(ctx context.Context, c component) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		ports, err := freePorts(s.o.BindAddress, c.ports)
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
	s.adopt(ch)
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("not healthy after %s", startPatience))
	defer cancel()
	err = poll(ctx, ch.done, func(ctx context.Context) error { return s.client.get(ctx, c.health(ports), nil) })
	switch {
	case !ch.alive():
		return ch, ch.failure()
	case err != nil:
		return ch, fmt.Errorf("waiting for %s: %w; the end of %s:\n%s", c.name, err, ch.log, ch.tail(20))
	}
	go s.watch(ch)
	return ch, nil
}

// adopt lists the child, in the place of its predecessor if it has one.
func (s *supervisor) adopt(ch *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.children, func(old *child) bool { return old.name == ch.name })
	if i < 0 {
		s.children = append(s.children, ch)
		return
	}
	s.children[i] = ch
}

func (s *supervisor) watch(ch *child) {
	<-ch.done
	if !ch.dismiss.Load() {
		s.lost <- ch
	}
}

// await polls for something that the components bring about together.
func (s *supervisor) await(ctx context.Context, what string, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("not there after %s", startPatience))
	defer cancel()
	givingUp := make(chan struct{})
	var lost *child
	go func() {
		select {
		case lost = <-s.lost:
			close(givingUp)
		case <-ctx.Done():
		}
	}()
	err := poll(ctx, givingUp, probe)
	select {
	case <-givingUp:
		return lost.failure()
	default:
	}
	if err != nil {
		return fmt.Errorf("waiting for %s: %w; logs are in %s", what, err, filepath.Join(s.o.Dir, "logs"))
	}
	return nil
}

// writeKubeconfigs writes the administrator's kubeconfig and one for each
// component, under the user whose rights the API server grants by default.
func (s *supervisor) writeKubeconfigs() error {
	var all []endpoint
	for i, name := range []string{"kube-apiserver-1", "kube-apiserver-2"}[:s.o.APIServers] {
		ch := s.find(name)
		url := s.o.url("https", ch.listen[0])
		s.info.APIServers = append(s.info.APIServers, url)
		all = append(all, endpoint{[]string{"admin", "admin-2"}[i], url})
	}
	if err := writeKubeconfig(s.info.Kubeconfig, s.files.authority, s.admin, all); err != nil {
		return err
	}
	users := []struct{ component, user, group string }{
		{"kube-controller-manager", "system:kube-controller-manager", ""},
		{"kube-scheduler", "system:kube-scheduler", ""},
		{"kwok", "kwok", "system:masters"},
	}
	for _, u := range users {
		pair, err := s.files.authority.Client(u.component, u.user, u.group)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(s.files.kubeconfig(u.component), s.files.authority, pair, all[:1]); err != nil {
			return err
		}
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

// setReady publishes what runs.
func (s *supervisor) setReady(took time.Duration) {
	s.mu.Lock()
	s.info.ReadyMillis = took.Milliseconds()
	s.mu.Unlock()
}

// snapshot returns what runs now, and writes it to stand.json.
func (s *supervisor) snapshot() *Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.info
	info.Components = nil
	for _, ch := range s.children {
		c := Component{Name: ch.name, Ports: ch.listen, Log: ch.log}
		if ch.alive() {
			c.Pid = ch.pid()
		}
		info.Components = append(info.Components, c)
	}
	if err := info.write(); err != nil {
		fmt.Fprintln(s.o.Progress, "stand:", err)
	}
	return &info
}

// stopAll stops the processes in the reverse order of their start. Those that
// only use the API go together, then the API servers, then etcd.
func (s *supervisor) stopAll() {
	s.mu.Lock()
	children := slices.Clone(s.children)
	s.mu.Unlock()
	for _, ch := range children {
		ch.dismiss.Store(true)
	}
	for len(children) > 0 {
		rank := stopRank(children[len(children)-1])
		var stopping sync.WaitGroup
		for len(children) > 0 && stopRank(children[len(children)-1]) == rank {
			last := children[len(children)-1]
			children = children[:len(children)-1]
			stopping.Go(func() { last.stop(stopPatience) })
		}
		stopping.Wait()
	}
}

func stopRank(c *child) int {
	switch c.program {
	case "etcd":
		return 0
	case "kube-apiserver":
		return 1
	default:
		return 2
	}
}

// kill sends a signal to one component. Unless the signal only stops or
// continues it, kill returns once the process is gone.
func (s *supervisor) kill(name string, sig syscall.Signal) error {
	ch := s.find(name)
	if ch == nil {
		return fmt.Errorf("no component %q", name)
	}
	ends := sig != syscall.SIGSTOP && sig != syscall.SIGCONT
	if ends {
		ch.dismiss.Store(true)
	}
	if err := ch.signal(sig); err != nil || !ends {
		return err
	}
	select {
	case <-ch.done:
		return nil
	case <-time.After(stopPatience):
		return fmt.Errorf("%s (pid %d) is still there %s after %s", name, ch.pid(), stopPatience, sig)
	}
}

// restart stops one component if it runs, and starts it again with the same
// flags, ports and data. It returns once the component is healthy.
func (s *supervisor) restart(ctx context.Context, name string) error {
	ch := s.find(name)
	if ch == nil {
		return fmt.Errorf("no component %q", name)
	}
	ch.stop(stopPatience)
	_, err := s.run(ctx, ch.component, ch.listen)
	return err
}
