//go:build linux

package nodecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// lastGoodFile is the file in the run directory with the live settings that an agent last took. Only root reads it.
const lastGoodFile = "settings.json"

// liveSettings holds the content of the files that may change while the agent runs.
type liveSettings struct {
	// ID is that of --config-id.
	ID string `json:"id,omitempty"`
	// Keys are those of --config, and Template is the file of --plugin-config.
	Keys     map[string]any `json:"keys"`
	Template string         `json:"template,omitempty"`
}

// resolveOrLast returns the settings. If the files that may change while the agent runs have become wrong, it returns those that were last
// good, and why the present ones are refused: an agent that ends would capture less than one that goes on.
func (p Program) resolveOrLast(typed *pflag.FlagSet) (s settings, refused, err error) {
	s, err = p.resolve(typed)
	if err == nil || s.configFile == "" && s.pluginConfigFile == "" {
		return s, nil, err
	}
	text, unread := os.ReadFile(filepath.Join(s.RunDir, lastGoodFile))
	if errors.Is(unread, fs.ErrNotExist) {
		return s, nil, err
	}
	var last liveSettings
	if unread == nil {
		unread = json.Unmarshal(text, &last)
	}
	if unread != nil {
		return s, nil, errors.Join(err, fmt.Errorf("read the settings that were last good: %w", unread))
	}
	if last.ID != s.configID {
		return s, nil, err // those of an upgrade were never good, and it has to fail
	}
	p.last = &last
	good, stillWrong := p.resolve(typed)
	if stillWrong != nil || good.RunDir != s.RunDir {
		return s, nil, err // so the flags are wrong too
	}
	return good, err, nil
}

// keeper keeps the last good settings.
type keeper struct {
	log  *slog.Logger
	kept *liveSettings
	said string
}

// keep writes the settings that are in force, if they are news.
func (k *keeper) keep(s settings) {
	if s.configFile == "" && s.pluginConfigFile == "" || k.kept != nil && reflect.DeepEqual(*k.kept, s.live) {
		return
	}
	text, err := json.Marshal(s.live)
	if err == nil {
		err = diskfile.Write(filepath.Join(s.RunDir, lastGoodFile), text, 0o600)
	}
	if err != nil {
		if err.Error() != k.said {
			k.said = err.Error()
			k.log.Warn("should the settings become wrong, an agent that starts then will not have these", "error", k.said)
		}
		return
	}
	k.kept, k.said = &s.live, ""
}
