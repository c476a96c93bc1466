package plugin

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exec runs the plugin with the arguments, environment and streams of this process, and then exits with its code. It does not return.
// On SIGINT and SIGTERM, ADD and CHECK end in good order: child processes end, and the rules are restored.
func (p Plugin) Exec() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if verb := os.Getenv("CNI_COMMAND"); verb == "ADD" || verb == "CHECK" { // the others start nothing
		go interruptible(cancel)
	}
	os.Exit(p.Run(ctx, IO{Args: os.Args, Getenv: os.Getenv, Stdin: stdin(), Stdout: os.Stdout, Stderr: os.Stderr}))
}

// interruptible runs beside the rest because signal.Notify takes a tenth of the whole program's start-up time; until then there is
// nothing to restore.
func interruptible(cancel context.CancelFunc) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
	cancel()
}

// stdin is empty if it is a terminal, so that nobody who tries CNI_COMMAND=VERSION by hand has to end the input.
func stdin() io.Reader {
	if st, err := os.Stdin.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		return nil
	}
	return os.Stdin
}
