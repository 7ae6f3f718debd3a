package stand

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sidecarset/operator/test/await"
)

// Options say which control plane a test package needs. The zero value is etcd
// and one API server, without the ServiceAccount admission plugin.
type Options struct {
	// Full adds the controller-manager, the scheduler and ServiceAccount
	// admission: namespaces get their ServiceAccount, Deployments their Pods.
	Full bool
	// Nodes is how many fake nodes there are, node-0 and on; kwok runs their
	// Pods. Needs Full.
	Nodes int
	// Kwok runs kwok without any node yet, for tests that make their own. A node
	// is kwok's if it has the annotation kwok.x-k8s.io/node: fake.
	Kwok bool
	// APIServers is one or two, on one etcd; 0 means one.
	APIServers int
	// Audit writes an audit log per API server: logs/kube-apiserver-1.audit.log
	// in the cluster's directory.
	Audit bool
	// Namespace runs the whole test binary in a network namespace; see
	// InNamespace. Only Main looks at it.
	Namespace bool
	// Processes is how many processes of the test binary share the tests, each with a control
	// plane of its own; there are never more of them than tests. They get the tests in turn.
	// Tests wait more than they compute, so two processors are enough for several processes.
	// 0 means one, whatever SHARDS says. Only Main looks at it.
	Processes int
	// Args are additional flags, as
	// "kube-apiserver=--feature-gates=H2CContainerProbe=true".
	Args []string
}

func (o Options) flags(dir string) []string {
	level := "apiserver"
	if o.Full {
		level = "full"
	}
	flags := []string{
		"run", "--orders", "--temporary", "--dir=" + dir, "--control-plane=" + level,
		"--nodes=" + strconv.Itoa(o.Nodes), "--apiservers=" + strconv.Itoa(max(o.APIServers, 1)),
		"--kwok=" + strconv.FormatBool(o.Kwok), "--audit=" + strconv.FormatBool(o.Audit),
	}
	for _, arg := range o.Args {
		flags = append(flags, "--arg="+arg)
	}
	return flags
}

// Cluster is a running control plane. Its methods may be called concurrently;
// its fields do not change.
type Cluster struct {
	Dir        string   `json:"dir"`        // data and logs; removed by Stop
	BinDir     string   `json:"bin"`        // etcd, kube-apiserver, kubectl and the others
	Version    string   `json:"version"`    // of Kubernetes
	Kubeconfig string   `json:"kubeconfig"` // contexts admin and, with two API servers, admin-2
	APIServers []string `json:"apiServers"` // URLs, in the order of the contexts
	CAFile     string   `json:"caFile"`     // the CA that signs the API servers' certificates
	Pid        int      `json:"pid"`        // of the launcher, the parent of all components

	cmd      *exec.Cmd
	done     chan struct{} // closed when the launcher is gone; waitErr is set then
	waitErr  error
	keepLogs bool

	asking  sync.Mutex // held from an order until its answer
	orders  io.WriteCloser
	answers *bufio.Reader

	mu      sync.Mutex
	stopped bool
	before  []func() // Stop calls these first, in reverse order
}

// Component is one process of the cluster.
type Component struct {
	Name  string `json:"name"` // etcd, kube-apiserver-1, kube-apiserver-2, kube-controller-manager, kube-scheduler, kwok
	Pid   int    `json:"pid"`  // 0 while it is killed
	Ports []int  `json:"ports"`
}

// Start starts a cluster in a temporary directory and returns when all of it is ready. The
// caller must Stop it. If this process ends before that, the cluster ends too.
func Start(o Options) (*Cluster, error) {
	path, module, err := launcher()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "stand-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, done: make(chan struct{})}
	if err := c.start(path, append(o.flags(dir), "--module="+module)); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// GarbageVariable is the environment variable with the GOGC of the control plane, of kubectl
// and of the test, but not of other processes that a test starts. With 400, they take 10 to 25
// percent less processor time, and more memory. Main sets it to 400 if it is not set.
const GarbageVariable = "STAND_GOGC"

// planeEnvironment is the environment of the control plane's programs.
func planeEnvironment() []string {
	environment := os.Environ()
	if percent := os.Getenv(GarbageVariable); percent != "" {
		environment = append(environment, "GOGC="+percent)
	}
	return environment
}

// start starts the launcher, and waits for the one line that says that it is ready.
func (c *Cluster) start(path string, flags []string) error {
	c.cmd = exec.CommandContext(context.Background(), path, flags...)
	c.cmd.Stderr = os.Stderr
	c.cmd.Env = planeEnvironment()
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if c.orders, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("starting the launcher: %w", err)
	}
	c.answers = bufio.NewReader(stdout)
	line, readErr := c.answers.ReadBytes('\n')
	go func() {
		c.waitErr = c.cmd.Wait()
		close(c.done)
	}()
	if readErr != nil {
		<-c.done
		return errors.New("the control plane did not start; the reason is above")
	}
	return json.Unmarshal(line, c)
}

// BeforeStop makes Stop call f first, to end processes that use the cluster.
func (c *Cluster) BeforeStop(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = append(c.before, f)
}

// Stop ends all processes of the cluster, deletes its directory and returns when
// they are gone. Calling it again does nothing.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil
	}
	c.stopped = true
	for _, f := range slices.Backward(c.before) {
		f()
	}
	if c.cmd == nil || c.cmd.Process == nil {
		return os.RemoveAll(c.Dir)
	}
	if c.keepLogs {
		c.saveLogs()
	}
	_ = c.orders.Close()
	select {
	case <-c.done:
	case <-time.After(await.Patience):
		_ = c.cmd.Process.Kill() // the components go with it
		<-c.done
	}
	if c.waitErr == nil {
		return nil
	}
	err := fmt.Errorf("the launcher (pid %d) ended with %w", c.cmd.Process.Pid, c.waitErr)
	if logs := filepath.Join(c.Dir, "logs"); exists(logs) {
		return fmt.Errorf("%w; logs are in %s", err, logs)
	}
	return errors.Join(err, os.RemoveAll(c.Dir))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// saveLogs moves the logs to a directory that Stop does not delete. Components continue to
// write to the moved files.
func (c *Cluster) saveLogs() {
	dir, err := os.MkdirTemp("", "stand-logs-")
	if err == nil {
		err = os.Rename(filepath.Join(c.Dir, "logs"), filepath.Join(dir, "logs"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stand: keeping the logs of the control plane:", err)
		return
	}
	fmt.Fprintln(os.Stderr, "stand: the logs of the control plane are kept in", filepath.Join(dir, "logs"))
}

// Config returns a client configuration for the first API server, as a member
// of system:masters and without client-side rate limiting.
func (c *Cluster) Config() *rest.Config { return c.ConfigFor(0) }

// ConfigFor is Config for the i-th API server, counted from 0.
func (c *Cluster) ConfigFor(i int) *rest.Config {
	loader := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: contextName(i)}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loader, overrides).ClientConfig()
	if err != nil {
		// The launcher wrote the file a moment ago; a test can do nothing about it.
		panic(fmt.Sprintf("reading the stand's kubeconfig %s: %v", c.Kubeconfig, err))
	}
	config.QPS = -1
	return config
}

func contextName(i int) string {
	if i == 0 {
		return "admin"
	}
	return "admin-" + strconv.Itoa(i+1)
}

// Established waits until CustomResourceDefinitions are established. definitions are arguments
// of kubectl. While a definition has no condition, kubectl fails and does not wait, so it is
// called again.
func (c *Cluster) Established(ctx context.Context, definitions ...string) error {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	return await.Until(ctx, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "", append([]string{"wait", "--for=condition=Established", "--timeout=" + await.Patience.String()}, definitions...)...)
		return err
	})
}

// Kubectl runs the kubectl of the cluster's own version as the administrator
// and returns what it printed. stdin may be empty. The error holds what kubectl
// said.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.BinDir, "kubectl"), args...)
	cmd.Env = append(planeEnvironment(),
		"KUBECONFIG="+c.Kubeconfig,
		"HOME="+c.Dir, // without plugins, preferences and cache of the user
	)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Components returns the components that run now.
func (c *Cluster) Components() ([]Component, error) { return c.ask("status") }

// Kill ends one component as a crash would (SIGKILL) and returns when it is
// gone. The cluster runs without it until it is restarted.
func (c *Cluster) Kill(_ context.Context, name string) error {
	_, err := c.ask("kill " + name)
	return err
}

// Signal sends SIGSTOP or SIGCONT to one component: with SIGSTOP, a server hangs.
func (c *Cluster) Signal(_ context.Context, name string, signal syscall.Signal) error {
	all, err := c.Components()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(c Component) bool { return c.Name == name })
	if i < 0 || all[i].Pid == 0 {
		return fmt.Errorf("no component %q runs", name)
	}
	return syscall.Kill(all[i].Pid, signal)
}

// Restart starts one component again, after stopping it if it runs, with the
// same flags, ports and data. It returns when the component is healthy.
func (c *Cluster) Restart(_ context.Context, name string) error {
	_, err := c.ask("restart " + name)
	return err
}

// ask gives the launcher an order, and returns what runs after it.
func (c *Cluster) ask(order string) ([]Component, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	var answer struct {
		Error      string      `json:"error"`
		Components []Component `json:"components"`
	}
	_, err := fmt.Fprintln(c.orders, order)
	var line []byte
	if err == nil {
		line, err = c.answers.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &answer)
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err != nil {
		return nil, fmt.Errorf("the stand, asked for %q: %w", order, err)
	}
	return answer.Components, nil
}

// built returns the path of the launcher, and makes it build the control plane if it is not built.
func built() (path string, err error) {
	path, module, err := launcher()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(context.Background(), path, "build", "--module="+module)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building the control plane: %w", err)
	}
	return path, nil
}

// Minor is the minor version of Kubernetes: 36 of v1.36.4.
func (c *Cluster) Minor() int {
	parts := strings.Split(c.Version, ".")
	if len(parts) < 2 {
		return 0
	}
	minor, _ := strconv.Atoi(parts[1])
	return minor
}
