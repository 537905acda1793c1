package fleet

// RunbookOf are the pages of all kinds of problems.
func RunbookOf() map[string]string { return runbookOf }
