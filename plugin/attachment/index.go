package attachment

import (
	"os"

	"github.com/meshcni/meshcni/internal/filememo"
)

// Index returns a function that returns all records without their Rules and Unusable, in no order, each time that it is called. An agent,
// which asks again and again, so pays for those that have changed. The error says what cannot be read; the other records are there
// nevertheless. A directory that does not exist, as that of the zero Store, has none. The function is not safe for concurrent use.
func (s Store) Index() (records func() ([]Record, error)) {
	if s.Dir == "" {
		return func() ([]Record, error) { return nil, nil }
	}
	var memo filememo.Memo[Record]
	return func() ([]Record, error) {
		found, err := memo.Refresh(os.DirFS(s.Dir), []string{"."}, func(name string) (r Record, err error) {
			if !isRecord(name) {
				return r, nil
			}
			if r, err = s.read(name); os.IsNotExist(err) {
				return Record{}, nil
			}
			r.Rules, r.Unusable = Record{}.Rules, nil
			return r, err
		})
		var records []Record
		for _, r := range found {
			if r.Version != 0 {
				records = append(records, r)
			}
		}
		return records, wrap("read the records of attachments", err)
	}
}
