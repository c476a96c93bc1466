package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

var (
	errInterrupted = errors.New("interrupted")
	errAgain       = errors.New("interrupted again")
)

// Exec runs a program as this process: with its arguments, until SIGINT or SIGTERM ends the context. It does not return. A second
// signal ends the context that [Again] returns, and a third one the process.
func Exec(main func(ctx context.Context, args []string) int) {
	ctx, stop := interruptible(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// interruptible returns a context that the first of the signals ends, with one for [Again] that the second ends.
func interruptible(parent context.Context, signals ...os.Signal) (context.Context, context.CancelFunc) {
	again, giveUp := context.WithCancelCause(context.WithoutCancel(parent))
	ctx, end := context.WithCancelCause(WithAgain(parent, again))
	received := make(chan os.Signal, len(signals))
	signal.Notify(received, signals...)
	ended := make(chan struct{})
	go func() {
		for _, act := range []func(){
			func() { end(errInterrupted) },
			func() {
				signal.Stop(received) // a third one ends the process, whatever hangs
				giveUp(errAgain)
			},
		} {
			select {
			case <-received:
				act()
			case <-ended:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(received)
		close(ended)
		end(nil)
		giveUp(nil)
	}
}

type againKey struct{}

// WithAgain returns a context of which [Again] returns again.
func WithAgain(ctx, again context.Context) context.Context {
	return context.WithValue(ctx, againKey{}, again)
}

// Again returns the context for what has to be done after ctx has ended, such as to take back what a command has made. It ends when
// the user interrupts for the second time: then the command says what it leaves behind, and ends at once. If nobody has given ctx
// such a context, it does not end.
func Again(ctx context.Context) context.Context {
	if again, ok := ctx.Value(againKey{}).(context.Context); ok {
		return again
	}
	return context.WithoutCancel(ctx)
}
