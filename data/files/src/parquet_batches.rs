//! Reads Parquet batches with bounded memory.
//!
//! Strings are read as views into their dictionary or page, so a value repeated in a million rows
//! is in memory once. The rest is counted page by page: the bytes of pages, the values of nested
//! columns (a single row may contain all of them), and values that a page stores as differences to
//! the previous one.

use std::collections::HashSet;
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::budgets::COLUMN_BYTES;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, FieldRef, Fields};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowGroups,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::{ConvertedType, Encoding, LogicalType, Type as PhysicalType};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::SerializedPageReader;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};
use tooltune_json::budgets::FILE_ROWS;

use crate::columns::{ColumnFault, catch_panics, is_json_text};
use crate::compressed_pages::CompressedPages;
use crate::delta_bytes::expanded_bytes;
use crate::parquet_depth::refuse_deep;

/// Maximum bytes of flat column values decoded together.
const BATCH_BYTES: usize = 16 << 20;

/// Maximum rows decoded together.
const MAX_ROWS: usize = 1024;

/// Bytes of a string view.
const VIEW_BYTES: usize = 16;

/// Bytes of the repetition and definition levels of a value.
const LEVEL_BYTES: usize = 4;

/// The batches of a file.
pub(crate) struct ParquetBatches {
    reader: ParquetRecordBatchReader,
    budget: Arc<Budget>,
    are_json: Vec<bool>,
}

impl ParquetBatches {
    pub(crate) fn open(mut file: File) -> Result<Self, ColumnFault> {
        refuse_deep(&mut file)?;
        let options = ArrowReaderOptions::new();
        let reader_metadata = ArrowReaderMetadata::load(&file, options).map_err(damaged_file)?;
        let metadata = Arc::clone(reader_metadata.metadata());
        let n_rows = metadata.file_metadata().num_rows();
        if usize::try_from(n_rows).map_or(true, |n| n > FILE_ROWS) {
            return Err(ColumnFault::Rows);
        }
        let schema = metadata.file_metadata().schema_descr_ptr();
        let fields = reader_metadata.schema().fields();
        let json = json_columns(&schema);
        let are_json = fields
            .iter()
            .map(|field| json.contains(field.name().as_str()) || is_json_text(field));
        let are_json = are_json.collect();
        let views: Fields = fields.iter().map(with_views).collect();
        let levels = parquet_to_arrow_field_levels(&schema, ProjectionMask::all(), Some(&views))
            .map_err(damaged_file)?;
        let budget = Arc::new(Budget::new(schema.num_columns()));
        let groups = BoundedGroups {
            file: Arc::new(file),
            metadata,
            budget: Arc::clone(&budget),
        };
        let row_bytes: usize = schema.columns().iter().map(|column| width(column)).sum();
        let batch_rows = (BATCH_BYTES / row_bytes.max(1)).clamp(1, MAX_ROWS);
        let reader =
            ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, batch_rows, None);
        Ok(Self {
            reader: reader.map_err(damaged_file)?,
            budget,
            are_json,
        })
    }

    /// Whether each column contains JSON strings.
    pub(crate) fn are_json(&self) -> Vec<bool> {
        self.are_json.clone()
    }
}

impl Iterator for ParquetBatches {
    type Item = Result<RecordBatch, ColumnFault>;

    fn next(&mut self) -> Option<Self::Item> {
        self.budget.start_batch();
        let batch = catch_panics(|| Ok(self.reader.next().transpose()?));
        let batch = batch.map_err(|fault| self.budget.fault().unwrap_or(fault));
        batch.transpose()
    }
}

fn damaged_file(error: ParquetError) -> ColumnFault {
    ColumnFault::Damaged(error.to_string())
}

/// The columns that Parquet's own types mark as JSON strings.
fn json_columns(schema: &SchemaDescriptor) -> HashSet<&str> {
    let columns = schema.root_schema().get_fields().iter();
    let json = columns.filter(|column| {
        let info = column.get_basic_info();
        info.logical_type_ref() == Some(&LogicalType::Json)
            || info.converted_type() == ConvertedType::JSON
    });
    json.map(|column| column.name()).collect()
}

/// A field whose strings and bytes are views.
fn with_views(field: &FieldRef) -> FieldRef {
    let with = |field: &FieldRef| with_views(field);
    let data_type = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, values) => {
            let values: FieldRef = Arc::new(Field::new("", (**values).clone(), true));
            with_views(&values).data_type().clone()
        }
        DataType::List(item) => DataType::List(with(item)),
        DataType::LargeList(item) => DataType::LargeList(with(item)),
        DataType::ListView(item) => DataType::ListView(with(item)),
        DataType::LargeListView(item) => DataType::LargeListView(with(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(with(item), *n),
        DataType::Map(entries, is_sorted) => DataType::Map(with(entries), *is_sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(with).collect()),
        other => other.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// Bytes of a decoded column value, including its levels.
fn width(column: &ColumnDescriptor) -> usize {
    let value = match column.physical_type() {
        PhysicalType::BYTE_ARRAY => VIEW_BYTES,
        PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            usize::try_from(column.type_length()).unwrap_or(usize::MAX / 2)
        }
        PhysicalType::INT96 => 12,
        PhysicalType::INT64 | PhysicalType::DOUBLE => 8,
        PhysicalType::INT32 | PhysicalType::FLOAT | PhysicalType::BOOLEAN => 4,
    };
    value.saturating_add(LEVEL_BYTES)
}

/// Memory used by the current batch.
#[derive(Debug)]
struct Budget {
    batch: AtomicUsize,
    /// Bytes of each column's dictionary, which is kept across batches.
    dictionaries: Vec<AtomicUsize>,
    /// Sum of the dictionary bytes.
    dictionary_bytes: AtomicUsize,
    fault: Mutex<Option<ColumnFault>>,
}

impl Budget {
    fn new(n_columns: usize) -> Self {
        Self {
            batch: AtomicUsize::new(0),
            dictionaries: (0..n_columns).map(|_| AtomicUsize::new(0)).collect(),
            dictionary_bytes: AtomicUsize::new(0),
            fault: Mutex::new(None),
        }
    }

    fn start_batch(&self) {
        self.batch.store(0, Ordering::Relaxed);
    }

    /// The exceeded limit, if any.
    fn fault(&self) -> Option<ColumnFault> {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.take()
    }

    fn charge(&self, bytes: usize) -> ParquetResult<()> {
        let total = self.batch.load(Ordering::Relaxed);
        self.batch
            .store(total.saturating_add(bytes), Ordering::Relaxed);
        self.check()
    }

    fn set_dictionary(&self, column: usize, bytes: usize) -> ParquetResult<()> {
        if let Some(dictionary) = self.dictionaries.get(column) {
            let previous = dictionary.swap(bytes, Ordering::Relaxed);
            self.dictionary_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.dictionary_bytes.fetch_sub(previous, Ordering::Relaxed);
        }
        self.check()
    }

    fn check(&self) -> ParquetResult<()> {
        let [batch, dictionary_bytes] =
            [&self.batch, &self.dictionary_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        let bytes = batch.saturating_add(dictionary_bytes);
        match bytes > COLUMN_BYTES {
            true => Err(self.store_fault(ColumnFault::TooLarge { bytes })),
            false => Ok(()),
        }
    }

    fn store_fault(&self, fault: ColumnFault) -> ParquetError {
        let mut first_fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let error = ParquetError::General(fault.to_string());
        first_fault.get_or_insert(fault);
        error
    }
}

/// The row groups of a file, with counted pages.
struct BoundedGroups {
    file: Arc<File>,
    metadata: Arc<ParquetMetaData>,
    budget: Arc<Budget>,
}

impl RowGroups for BoundedGroups {
    fn num_rows(&self) -> usize {
        usize::try_from(self.metadata.file_metadata().num_rows()).unwrap_or_default()
    }

    fn column_chunks(&self, column: usize) -> ParquetResult<Box<dyn PageIterator>> {
        Ok(Box::new(BoundedChunks {
            file: Arc::clone(&self.file),
            metadata: Arc::clone(&self.metadata),
            budget: Arc::clone(&self.budget),
            column,
            groups: 0..self.metadata.num_row_groups(),
        }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.metadata.row_groups().iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The chunks of one column, one per row group.
struct BoundedChunks {
    file: Arc<File>,
    metadata: Arc<ParquetMetaData>,
    budget: Arc<Budget>,
    column: usize,
    groups: std::ops::Range<usize>,
}

impl Iterator for BoundedChunks {
    type Item = ParquetResult<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.metadata.row_group(self.groups.next()?);
        let chunk = group.column(self.column);
        let n_rows = usize::try_from(group.num_rows()).unwrap_or_default();
        let compressed = CompressedPages::new(Arc::clone(&self.file), chunk.compression());
        let pages = SerializedPageReader::new(Arc::new(compressed), chunk, n_rows, None);
        let column = chunk.column_descr();
        Some(pages.map(|pages| {
            let bounded = BoundedPages {
                pages,
                budget: Arc::clone(&self.budget),
                column: self.column,
                max_levels: [column.max_rep_level(), column.max_def_level()],
                width: width(column),
            };
            Box::new(bounded) as Box<dyn PageReader>
        }))
    }
}

impl PageIterator for BoundedChunks {}

/// The pages of a chunk.
struct BoundedPages {
    pages: SerializedPageReader<CompressedPages>,
    budget: Arc<Budget>,
    column: usize,
    /// Maximum repetition and definition levels.
    max_levels: [i16; 2],
    /// Bytes of a decoded value.
    width: usize,
}

impl BoundedPages {
    fn take_page(&self, page: &Page) -> ParquetResult<()> {
        let bytes = page.buffer().len();
        if page.is_dictionary_page() {
            return self.budget.set_dictionary(self.column, bytes);
        }
        self.budget.charge(bytes)?;
        if page.encoding() == Encoding::DELTA_BYTE_ARRAY {
            let Some(n_expanded) = expanded_bytes(page, self.max_levels) else {
                let problem = "a page of values that are stored as differences is damaged";
                let damaged_file = ColumnFault::Damaged(problem.to_owned());
                return Err(self.budget.store_fault(damaged_file));
            };
            self.budget.charge(n_expanded)?;
        }
        Ok(())
    }
}

impl Iterator for BoundedPages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let Some(next) = self.pages.peek_next_page()? else {
            return Ok(None);
        };
        // A flat column decodes no more values than rows were requested.
        if self.max_levels[0] > 0 && !next.is_dict {
            let n_values = next.num_levels.unwrap_or_default();
            self.budget.charge(n_values.saturating_mul(self.width))?;
        }
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.take_page(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        self.pages.at_record_boundary()
    }
}
