//go:build linux

package nodeagent

import (
	"context"
	"log/slog"
	"reflect"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// supervisor runs a controller with the present settings, and starts it anew when those change that it goes by. As a Prometheus
// collector it has the running controller's metrics.
type supervisor[C prometheus.Collector] struct {
	name   string // of the controller, in the log
	log    *slog.Logger
	goesBy func(Config) any
	keeps  func(C) bool // whether a controller must not be ended for changed settings now; nil: never

	mu       sync.Mutex
	settings Config
	running  *C                 // nil: none runs
	failed   error              // why none could begin
	again    context.CancelFunc // ends the run, so that another begins; nil: there has been none
	changed  bool               // the settings have, since the run could be ended last
	news     chan struct{}      // closed when any of this changes
}

func (s *supervisor[C]) init(name string, c Config, goesBy func(Config) any, log *slog.Logger) {
	s.name, s.settings, s.goesBy, s.log, s.news = name, c, goesBy, log, make(chan struct{})
}

// present returns the present settings.
func (s *supervisor[C]) present() Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings
}

// change takes new settings.
func (s *supervisor[C]) change(c Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := !reflect.DeepEqual(s.goesBy(c), s.goesBy(s.settings))
	s.settings = c
	switch {
	case !changed || s.again == nil:
	case s.running != nil && s.keeps != nil && s.keeps(*s.running):
		s.changed = true
		s.log.Info("the changed configuration counts for " + s.name + " later")
	default:
		s.log.Info(s.name + " starts anew with the changed configuration")
		s.again()
	}
}

// restart ends the run, so that another begins.
func (s *supervisor[C]) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again != nil {
		s.again()
	}
}

// once opens a controller and runs it until the context ends or it ends by itself, or else until another is to begin.
func (s *supervisor[C]) once(ctx context.Context, open func(context.Context) (C, func(context.Context) error, error)) (again bool, err error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	s.mu.Lock()
	s.again = stop
	s.mu.Unlock()
	c, run, err := open(running)
	if err == nil {
		s.set(&c)
		defer s.set(nil)
		err = run(running)
	}
	return running.Err() != nil && ctx.Err() == nil, err
}

func (s *supervisor[C]) set(c *C) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.changed = c, false
	if c != nil {
		s.failed = nil
	}
	s.tell()
}

// fail notes why no controller could begin, and reports whether that is news.
func (s *supervisor[C]) fail(err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = s.failed == nil || s.failed.Error() != err.Error()
	s.failed = err
	s.tell()
	return news
}

// tell wakes those that wait for news. The caller holds the lock.
func (s *supervisor[C]) tell() {
	close(s.news)
	s.news = make(chan struct{})
}

// state returns the running controller, or why none could begin. Neither: it is not its turn.
func (s *supervisor[C]) state() (*C, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running, s.failed
}

// Describe implements [prometheus.Collector]. The metrics change with the controller.
func (s *supervisor[C]) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (s *supervisor[C]) Collect(ch chan<- prometheus.Metric) {
	if c, _ := s.state(); c != nil {
		(*c).Collect(ch)
	}
}
